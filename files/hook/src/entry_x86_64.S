/* entry_x86_64.S - dlsym and dlvsym, the two names through which programs find the driver.
 *
 * Promise: for every name that is not ours, and for RTLD_NEXT, the loader's own function runs with the caller's return address, by a
 *          tail jump. It decides by that address who asks; a call in between would change the answer (and did, in every other hook).
 * Next:    tf_dlsym_decide (lookup.c) answers names that begin with cu[A-Z] or nvml[A-Z]. */
#if defined(__CET__)
#include <cet.h>
#else
#define _CET_ENDBR
#endif

    .text

    .macro entry name, real
    .globl \name
    .type \name, @function
    .p2align 4
\name:
    .cfi_startproc
    _CET_ENDBR
    cmpq $-1, %rdi /* RTLD_NEXT */
    je 2f
    testq %rsi, %rsi
    je 2f
    cmpb $'c', (%rsi)
    jne 1f
    cmpb $'u', 1(%rsi)
    jne 2f
    movzbl 2(%rsi), %eax
    jmp 3f
1:  cmpb $'n', (%rsi) /* byte by byte: a short name may end at the end of a page */
    jne 2f
    cmpb $'v', 1(%rsi)
    jne 2f
    cmpb $'m', 2(%rsi)
    jne 2f
    cmpb $'l', 3(%rsi)
    jne 2f
    movzbl 4(%rsi), %eax
3:  subl $'A', %eax
    cmpl $25, %eax
    ja 2f
    /* maybe ours: ask C, which keeps nothing of us but three arguments */
    pushq %rdi
    .cfi_adjust_cfa_offset 8
    pushq %rsi
    .cfi_adjust_cfa_offset 8
    pushq %rdx
    .cfi_adjust_cfa_offset 8
    .ifc \name, dlsym
    xorl %edx, %edx
    .endif
    call tf_dlsym_decide
    movq %rdx, %rcx
    popq %rdx
    .cfi_adjust_cfa_offset -8
    popq %rsi
    .cfi_adjust_cfa_offset -8
    popq %rdi
    .cfi_adjust_cfa_offset -8
    testq %rax, %rax
    je 2f
    movq %rcx, %rax
    ret
2:  movq \real(%rip), %rax
    testq %rax, %rax
    je 4f
    jmp *%rax
4:  pushq %rdi
    .cfi_adjust_cfa_offset 8
    pushq %rsi
    .cfi_adjust_cfa_offset 8
    pushq %rdx
    .cfi_adjust_cfa_offset 8
    call tf_loader_find
    popq %rdx
    .cfi_adjust_cfa_offset -8
    popq %rsi
    .cfi_adjust_cfa_offset -8
    popq %rdi
    .cfi_adjust_cfa_offset -8
    movq \real(%rip), %rax
    testq %rax, %rax
    je 5f
    jmp *%rax
5:  ret
    .cfi_endproc
    .size \name, .-\name
    .endm

    entry dlsym, tf_real_dlsym
    entry dlvsym, tf_real_dlvsym

    .section .note.GNU-stack,"",@progbits
