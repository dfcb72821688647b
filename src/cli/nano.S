/* The built-in models and their drafters, inside the program. */
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
    blob nano_qwen_target, models/nano-qwen/target.gguf
    blob nano_qwen_dflash, models/nano-qwen/dflash.gguf
    blob nano_vision_mmproj, models/nano-vision/mmproj.gguf
    .section .note.GNU-stack, "", %progbits
