// SPDX-License-Identifier: Apache-2.0

#include "textflag.h"

// func prefetch(e *entry)
TEXT ·prefetch(SB), NOSPLIT, $0-8
	MOVD e+0(FP), R0
	PRFM (R0), PLDL1KEEP
	RET
