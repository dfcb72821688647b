/* The default model and its drafters, inside the program. */
    .macro blob name, file
    .balign 64
    .global \name, \name\()_end
\name:
    .incbin "\file"
\name\()_end:
    .endm

    .section .rodata
    blob nano_target, models/nano/target.gguf
    blob nano_dflash, models/nano/dflash.gguf
    blob nano_mtp, models/nano/mtp.gguf
    .section .note.GNU-stack, "", %progbits
