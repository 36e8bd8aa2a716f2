/* nested.c - the one thread-local word of nested.h. */
#include "nested.h"

_Thread_local int tf_nesting;
