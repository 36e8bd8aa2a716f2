/* nested.c - the one thread-local word of nested.h. */
#include "driver/nested.h"

_Thread_local int tf_nesting;
