/* The default model, inside the program. */
    .section .rodata
    .balign 64
    .global nano_target, nano_target_end
nano_target:
    .incbin "models/nano/target.gguf"
nano_target_end:
    .section .note.GNU-stack, "", %progbits
