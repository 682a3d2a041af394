//go:build !purego

#include "textflag.h"

// What can be wrong with a byte behind another, one bit each. A fault is there if
// the tables say so for all of: the high and the low four bits of the byte before
// (lead, detail), and the high four bits of the byte itself (follow).
#define SHORT     0x01 // a character has begun, and this byte is none of its others
#define LONG      0x02 // this byte belongs to a character, behind ASCII
#define OVERLONG2 0x04 // two bytes for what is ASCII: 0xc0, 0xc1
#define OVERLONG3 0x08 // three for what fits into two: 0xe0, then below 0xa0
#define SURROGATE 0x10 // 0xed, then from 0xa0
#define LARGE     0x20 // above U+10FFFF: 0xf4 and all above, then from 0x90
#define EDGE      0x40 // below 0x90, behind 0xf0 (overlong) or 0xf5 and all above (too large)
#define PAIR      0x80 // neither byte is the first of a character: see JUDGE
#define ALWAYS    (SHORT|LONG|PAIR) // whatever the low four bits are

DATA lead<>+0(SB)/8, $(LONG*0x0101010101010101)
DATA lead<>+8(SB)/4, $(PAIR*0x01010101)
DATA lead<>+12(SB)/1, $(SHORT|OVERLONG2)
DATA lead<>+13(SB)/1, $SHORT
DATA lead<>+14(SB)/1, $(SHORT|OVERLONG3|SURROGATE)
DATA lead<>+15(SB)/1, $(SHORT|LARGE|EDGE)
GLOBL lead<>(SB), RODATA|NOPTR, $16

DATA detail<>+0(SB)/1, $(ALWAYS|OVERLONG2|OVERLONG3|EDGE)
DATA detail<>+1(SB)/1, $(ALWAYS|OVERLONG2)
DATA detail<>+2(SB)/1, $ALWAYS
DATA detail<>+3(SB)/1, $ALWAYS
DATA detail<>+4(SB)/1, $(ALWAYS|LARGE)
DATA detail<>+5(SB)/8, $((ALWAYS|LARGE|EDGE)*0x0101010101010101)
DATA detail<>+13(SB)/1, $(ALWAYS|LARGE|EDGE|SURROGATE)
DATA detail<>+14(SB)/1, $(ALWAYS|LARGE|EDGE)
DATA detail<>+15(SB)/1, $(ALWAYS|LARGE|EDGE)
GLOBL detail<>(SB), RODATA|NOPTR, $16

DATA follow<>+0(SB)/8, $(SHORT*0x0101010101010101)
DATA follow<>+8(SB)/1, $(LONG|PAIR|OVERLONG2|OVERLONG3|EDGE)
DATA follow<>+9(SB)/1, $(LONG|PAIR|OVERLONG2|OVERLONG3|LARGE)
DATA follow<>+10(SB)/1, $(LONG|PAIR|OVERLONG2|SURROGATE|LARGE)
DATA follow<>+11(SB)/1, $(LONG|PAIR|OVERLONG2|SURROGATE|LARGE)
DATA follow<>+12(SB)/4, $(SHORT*0x01010101)
GLOBL follow<>(SB), RODATA|NOPTR, $16

// Single bytes, spread over a register where they are needed.
DATA bytes<>+0(SB)/4, $0x8070600f
GLOBL bytes<>(SB), RODATA|NOPTR, $4

#define NIBBLE bytes<>+0(SB) // 0x0f
#define THIRD  bytes<>+1(SB) // 0x60, which leaves the high bit to 0xe0 and above only
#define FOURTH bytes<>+2(SB) // 0x70, which leaves the high bit to 0xf0 and above only
#define HIGH   bytes<>+3(SB) // 0x80

// JUDGE adds to Y15 what is wrong with the 32 bytes at off, which are in now. The
// bytes before each of them are loaded once more, from one, two and three places
// further left: so a block needs nothing from the block before it.
//
// In Y3 is what the tables say. Where a byte stands two behind the first of a
// character of three or more, or three behind one of four, the high bit of Y5 says
// that it has to be one of its others, and PAIR that it is one and that so is the
// byte before: either without the other is a fault.
#define JUDGE(now, off) \
	VMOVDQU  (off-1)(SI)(AX*1), Y2 \
	VMOVDQU  (off-2)(SI)(AX*1), Y5 \
	VMOVDQU  (off-3)(SI)(AX*1), Y6 \
	VPSRLW   $4, Y2, Y3   \
	VPAND    Y11, Y3, Y3  \
	VPAND    Y11, Y2, Y2  \
	VPSRLW   $4, now, Y4  \
	VPAND    Y11, Y4, Y4  \
	VPSHUFB  Y3, Y8, Y3   \
	VPSHUFB  Y2, Y9, Y2   \
	VPSHUFB  Y4, Y10, Y4  \
	VPAND    Y2, Y3, Y3   \
	VPAND    Y4, Y3, Y3   \
	VPSUBUSB Y12, Y5, Y5  \
	VPSUBUSB Y13, Y6, Y6  \
	VPOR     Y6, Y5, Y5   \
	VPAND    Y14, Y5, Y5  \
	VPXOR    Y3, Y5, Y5   \
	VPOR     Y5, Y15, Y15

// func blocksAVX2(p *byte, n int) (ok bool)
//
// Two blocks of 64 bytes make a group. A group is passed at once if it is ASCII and
// no character reaches into it. One block is too few for that: where every other
// one is ASCII, a branch that is foretold wrongly costs more than judging it does.
//
//	SI  the text           DX  the last place where a block may begin
//	AX  where this block begins
//	BX  the last place where a block of this group may begin
//	Y8 lead  Y9 detail  Y10 follow  Y11 NIBBLE  Y12 THIRD  Y13 FOURTH  Y14 HIGH
//	Y15  all faults so far; where they are is not asked for
TEXT ·blocksAVX2(SB), NOSPLIT, $0-17
	MOVQ           p+0(FP), SI
	MOVQ           n+8(FP), DX
	SUBQ           $64, DX
	XORL           AX, AX
	VBROADCASTI128 lead<>(SB), Y8
	VBROADCASTI128 detail<>(SB), Y9
	VBROADCASTI128 follow<>(SB), Y10
	VPBROADCASTB   NIBBLE, Y11
	VPBROADCASTB   THIRD, Y12
	VPBROADCASTB   FOURTH, Y13
	VPBROADCASTB   HIGH, Y14
	VPXOR          Y15, Y15, Y15

group:
	// AX <= DX: there is one more block at least, and a second if BX <= DX.
	LEAQ 64(AX), BX
	CMPQ BX, DX
	JGT  single

	// Is anything above 0x7f in the group or in the three bytes before it?
	VMOVDQU   -3(SI)(AX*1), Y0
	VMOVDQU   29(SI)(AX*1), Y1
	VPOR      61(SI)(AX*1), Y0, Y0
	VPOR      93(SI)(AX*1), Y1, Y1
	VPOR      96(SI)(AX*1), Y0, Y0
	VPOR      Y0, Y1, Y0
	VPMOVMSKB Y0, CX
	TESTL     CX, CX
	JNZ       block
	ADDQ      $128, AX
	JMP       next

single:
	MOVQ DX, BX

	PCALIGN $32

block:
	// 64 bytes, of which AX <= DX says that they are all within the text.
	VMOVDQU (SI)(AX*1), Y0
	VMOVDQU 32(SI)(AX*1), Y1
	JUDGE(Y0, 0)
	JUDGE(Y1, 32)
	ADDQ    $64, AX
	CMPQ    AX, BX
	JLE     block

next:
	CMPQ AX, DX
	JLE  group

	// The last block is laid over the end of the text, unless one has ended there.
	LEAQ 64(DX), CX
	CMPQ AX, CX
	JEQ  done
	MOVQ DX, AX
	JMP  single

done:
	VPTEST Y15, Y15
	SETEQ  ok+16(FP)
	VZEROUPPER // what follows may use the narrow instructions
	RET
