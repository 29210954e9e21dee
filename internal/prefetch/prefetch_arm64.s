#include "textflag.h"

// func Read(bufs [][]byte)
TEXT ·Read(SB), NOSPLIT, $0-24
	MOVD bufs_base+0(FP), R0
	MOVD bufs_len+8(FP), R1
	CBZ  R1, done

loop:
	MOVD (R0), R2
	PRFM (R2), PLDL1KEEP
	ADD  $75, R2
	PRFM (R2), PLDL1KEEP
	ADD  $24, R0
	SUBS $1, R1
	BNE  loop

done:
	RET

// func Write(bufs [][]byte)
TEXT ·Write(SB), NOSPLIT, $0-24
	MOVD bufs_base+0(FP), R0
	MOVD bufs_len+8(FP), R1
	CBZ  R1, done

loop:
	MOVD (R0), R2
	PRFM (R2), PSTL1KEEP
	ADD  $75, R2
	PRFM (R2), PSTL1KEEP
	ADD  $24, R0
	SUBS $1, R1
	BNE  loop

done:
	RET
