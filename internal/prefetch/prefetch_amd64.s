#include "textflag.h"

// func Read(bufs [][]byte)
TEXT ·Read(SB), NOSPLIT, $0-24
	MOVQ  bufs_base+0(FP), BX
	MOVQ  bufs_len+8(FP), CX
	TESTQ CX, CX
	JLE   done

loop:
	MOVQ       (BX), AX
	PREFETCHT0 (AX)
	PREFETCHT0 75(AX)
	ADDQ       $24, BX
	DECQ       CX
	JNZ        loop

done:
	RET

// The assembler does not know PREFETCHW. Processors without it take it for a NOP.
//
// func Write(bufs [][]byte)
TEXT ·Write(SB), NOSPLIT, $0-24
	MOVQ  bufs_base+0(FP), BX
	MOVQ  bufs_len+8(FP), CX
	TESTQ CX, CX
	JLE   done

loop:
	MOVQ (BX), AX
	BYTE $0x0f; BYTE $0x0d; BYTE $0x08             // PREFETCHW (AX)
	BYTE $0x0f; BYTE $0x0d; BYTE $0x48; BYTE $0x4b // PREFETCHW 75(AX)
	ADDQ $24, BX
	DECQ CX
	JNZ  loop

done:
	RET
