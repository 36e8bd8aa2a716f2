/* entry_aarch64.S - dlsym and dlvsym; see entry_x86_64.S for the promise that both keep. */
    .text

    .macro entry name, real
    .globl \name
    .type \name, %function
    .p2align 4
\name:
    .cfi_startproc
    hint #34 /* bti c */
    cmn x0, #1 /* RTLD_NEXT */
    b.eq 2f
    cbz x1, 2f
    ldrb w9, [x1]
    cmp w9, #'c'
    b.ne 1f
    ldrb w9, [x1, #1]
    cmp w9, #'u'
    b.ne 2f
    ldrb w9, [x1, #2]
    b 3f
1:  cmp w9, #'n'
    b.ne 2f
    ldrb w9, [x1, #1]
    cmp w9, #'v'
    b.ne 2f
    ldrb w9, [x1, #2]
    cmp w9, #'m'
    b.ne 2f
    ldrb w9, [x1, #3]
    cmp w9, #'l'
    b.ne 2f
    ldrb w9, [x1, #4]
3:  sub w9, w9, #'A'
    cmp w9, #25
    b.hi 2f
    stp x29, x30, [sp, #-48]!
    .cfi_def_cfa_offset 48
    .cfi_offset 29, -48
    .cfi_offset 30, -40
    stp x0, x1, [sp, #16]
    str x2, [sp, #32]
    .ifc \name, dlsym
    mov x2, #0
    .endif
    bl tf_dlsym_decide
    mov x10, x0
    mov x11, x1
    ldp x0, x1, [sp, #16]
    ldr x2, [sp, #32]
    ldp x29, x30, [sp], #48
    .cfi_restore 29
    .cfi_restore 30
    .cfi_def_cfa_offset 0
    cbz x10, 2f
    mov x0, x11
    ret
2:  adrp x16, \real
    ldr x16, [x16, #:lo12:\real]
    cbz x16, 4f
    br x16
4:  stp x29, x30, [sp, #-48]!
    .cfi_def_cfa_offset 48
    .cfi_offset 29, -48
    .cfi_offset 30, -40
    stp x0, x1, [sp, #16]
    str x2, [sp, #32]
    bl tf_loader_find
    ldp x0, x1, [sp, #16]
    ldr x2, [sp, #32]
    ldp x29, x30, [sp], #48
    .cfi_restore 29
    .cfi_restore 30
    .cfi_def_cfa_offset 0
    adrp x16, \real
    ldr x16, [x16, #:lo12:\real]
    cbz x16, 5f
    br x16
5:  mov x0, #0
    ret
    .cfi_endproc
    .size \name, .-\name
    .endm

    entry dlsym, tf_real_dlsym
    entry dlvsym, tf_real_dlvsym

    .section .note.GNU-stack,"",%progbits
