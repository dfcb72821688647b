/* spec/method.h - the methods of drafting. */
#ifndef TANDEM_SPEC_METHOD_H
#define TANDEM_SPEC_METHOD_H

typedef enum { SPEC_OFF, SPEC_DFLASH, SPEC_TREE, SPEC_MTP, SPEC_NGRAM, SPEC_METHODS } spec_method;
extern const char *const spec_method_names[]; /* "auto" after the methods, then NULL */
#endif
