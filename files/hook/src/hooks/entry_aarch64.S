/* entry_aarch64.S - dlsym and dlvsym; see entry_x86_64.S for the promise that both keep. */
    .text

    .macro keep_arguments
    stp x29, x30, [sp, #-48]!
    .cfi_def_cfa_offset 48
    .cfi_offset 29, -48
    .cfi_offset 30, -40
    stp x0, x1, [sp, #16]
    str x2, [sp, #32]
    .endm

    .macro restore_arguments
    ldp x0, x1, [sp, #16]
    ldr x2, [sp, #32]
    ldp x29, x30, [sp], #48
    .cfi_restore 29
    .cfi_restore 30
    .cfi_def_cfa_offset 0
    .endm

    /* \next holds the loader's function once it is known, before that a piece of code that finds it. */
    .macro entry name, real, next
    .globl \name
    .type \name, %function
    .p2align 4
\name:
    .cfi_startproc
    hint #34 /* bti c */
    ldrb w9, [x1] /* no name at all is a crash here as in the loader */
    cmp w9, #'c'
    b.eq 1f
    cmp w9, #'n'
    b.eq 3f
2:  adrp x16, \next
    ldr x16, [x16, #:lo12:\next]
    br x16
1:  ldrb w9, [x1, #1] /* byte by byte: a short name may end at the end of a page */
    cmp w9, #'u'
    b.ne 2b
    ldrb w9, [x1, #2]
    b 4f
3:  ldrb w9, [x1, #1]
    cmp w9, #'v'
    b.ne 2b
    ldrb w9, [x1, #2]
    cmp w9, #'m'
    b.ne 2b
    ldrb w9, [x1, #3]
    cmp w9, #'l'
    b.ne 2b
    ldrb w9, [x1, #4]
4:  sub w9, w9, #'A'
    cmp w9, #25
    b.hi 2b
    cmn x0, #1 /* RTLD_NEXT */
    b.eq 2b
    keep_arguments
    .ifc \name, dlsym
    mov x2, #0
    .endif
    bl tf_dlsym_decide
    mov x10, x0
    mov x11, x1
    restore_arguments
    cbz x10, 2b
    mov x0, x11
    ret
    .cfi_endproc
    .size \name, .-\name

    .type \name\()_first, %function
    .p2align 4
\name\()_first:
    .cfi_startproc
    hint #34
    keep_arguments
    bl tf_loader_find
    restore_arguments
    adrp x16, \real
    ldr x16, [x16, #:lo12:\real]
    cbz x16, 5f
    adrp x17, \next
    str x16, [x17, #:lo12:\next]
    br x16
5:  mov x0, #0
    ret
    .cfi_endproc
    .size \name\()_first, .-\name\()_first

    .data
    .p2align 3
\next:
    .quad \name\()_first
    .text
    .endm

    entry dlsym, tf_real_dlsym, next_dlsym
    entry dlvsym, tf_real_dlvsym, next_dlvsym

    .section .note.GNU-stack,"",%progbits
