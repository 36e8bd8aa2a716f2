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

    .macro keep_arguments
    pushq %rdi
    .cfi_adjust_cfa_offset 8
    pushq %rsi
    .cfi_adjust_cfa_offset 8
    pushq %rdx
    .cfi_adjust_cfa_offset 8
    .endm

    .macro restore_arguments
    popq %rdx
    .cfi_adjust_cfa_offset -8
    popq %rsi
    .cfi_adjust_cfa_offset -8
    popq %rdi
    .cfi_adjust_cfa_offset -8
    .endm

    /* \next holds the loader's function once it is known, before that a piece of code that finds it. */
    .macro entry name, real, next
    .globl \name
    .type \name, @function
    .p2align 4
\name:
    .cfi_startproc
    _CET_ENDBR
    movzbl (%rsi), %eax /* no name at all is a crash here as in the loader */
    cmpb $'c', %al
    je 1f
    cmpb $'n', %al
    je 3f
2:  jmp *\next(%rip)
1:  cmpb $'u', 1(%rsi) /* byte by byte: a short name may end at the end of a page */
    jne 2b
    movzbl 2(%rsi), %eax
    jmp 4f
3:  cmpb $'v', 1(%rsi)
    jne 2b
    cmpb $'m', 2(%rsi)
    jne 2b
    cmpb $'l', 3(%rsi)
    jne 2b
    movzbl 4(%rsi), %eax
4:  subl $'A', %eax
    cmpl $25, %eax
    ja 2b
    cmpq $-1, %rdi /* RTLD_NEXT */
    je 2b
    /* maybe ours: ask C, which keeps nothing of us but three arguments */
    keep_arguments
    .ifc \name, dlsym
    xorl %edx, %edx
    .endif
    call tf_dlsym_decide
    movq %rdx, %rcx
    restore_arguments
    testq %rax, %rax
    je 2b
    movq %rcx, %rax
    ret
    .cfi_endproc
    .size \name, .-\name

    .type \name\()_first, @function
    .p2align 4
\name\()_first:
    .cfi_startproc
    _CET_ENDBR
    keep_arguments
    call tf_loader_find
    restore_arguments
    movq \real(%rip), %rax
    testq %rax, %rax
    je 5f
    movq %rax, \next(%rip)
    jmp *%rax
5:  ret
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

    .section .note.GNU-stack,"",@progbits
