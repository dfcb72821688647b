/* spec/confidence.h - how often draft tokens are accepted, given the confidence of the drafter: learned while serving.
 *
 * A drafter states a confidence for each draft token (model/drafter.h). Its error depends on the drafter, on the
 * depth in the draft, and on sampling: noise that the drafter does not know makes it too high. A calibration counts
 * acceptances by depth and confidence, over all lanes. There is one per drafter and for greedy and sampled requests. */
#ifndef TANDEM_SPEC_CONFIDENCE_H
#define TANDEM_SPEC_CONFIDENCE_H
#include <stdbool.h>

enum { CONFIDENCE_BINS = 10, CONFIDENCE_DEPTHS = 6 };
/* All zeros: confidences are taken as they are. */
typedef struct {
    double right[CONFIDENCE_DEPTHS][CONFIDENCE_BINS], tried[CONFIDENCE_DEPTHS][CONFIDENCE_BINS];
} calibration;

/* Returns the probability that a draft token is accepted, given that all before it are. depth counts from 0. */
double calibration_rate(const calibration *c, int depth, double confidence);
/* Records a draft token that followed accepted ones. */
void calibration_note(calibration *c, int depth, double confidence, bool right);
#endif
