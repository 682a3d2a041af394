//go:build !purego

#include "textflag.h"

// Single bytes, spread over a register where they are needed.
DATA bytes<>+0(SB)/8, $0x05612075721f225c
DATA bytes<>+8(SB)/8, $0x0000000000000930
GLOBL bytes<>(SB), RODATA|NOPTR, $16

#define BACKSLASH bytes<>+0(SB)
#define QUOTE     bytes<>+1(SB)
#define LASTCTRL  bytes<>+2(SB) // 0x1f, the last control character
#define LETTERR   bytes<>+3(SB)
#define LETTERU   bytes<>+4(SB)
#define CASEBIT   bytes<>+5(SB) // 0x20, by which 'A' and 'a' differ
#define LETTERA   bytes<>+6(SB)
#define FIVE      bytes<>+7(SB)
#define ZERO      bytes<>+8(SB) // the digit
#define NINE      bytes<>+9(SB) // the number

// What may follow the backslash in an escape of two bytes, each at the place that
// its low four bits name: a byte is one of them if VPSHUFB, which looks it up by
// those bits, gives the byte itself. 'b' has the place that 'r' and '"' would have
// too; those are compared on their own, and the backslash is known anyway. Where
// nothing stands there is 0xff: no byte below 0x80 equals it, and for a byte above
// VPSHUFB gives 0.
DATA simple<>+0(SB)/8, $0xff66ff74ff62ffff // 'b' at 2, 't' at 4, 'f' at 6
DATA simple<>+8(SB)/8, $0x2f6effffffffffff // 'n' at 14, '/' at 15
GLOBL simple<>(SB), RODATA|NOPTR, $16

// MASK makes one bit of each byte of two registers that comparisons have filled,
// the lowest bit for the first byte of lo; CX is lost.
#define MASK(lo, hi, out) \
	VPMOVMSKB lo, out \
	VPMOVMSKB hi, CX  \
	SHLQ      $32, CX \
	ORQ       CX, out

// func blocksAVX2(p *byte, n int) (done int, high uint64)
//
// A block is 64 bytes, in two registers; of what is asked of its bytes a general
// register holds one bit each. In nearly every block of plain text nothing is
// found (block, next). Where something is, no branch depends on what or on how
// many (look), since what is in a text cannot be predicted; only a \u (unicode)
// and the end (stop, judge) go ways of their own.
//
//	SI  the text           DX  the last place where a block may begin
//	AX  where this block begins, and in the end how much has been passed
//	R8  1 if the first byte of this block is escaped by the last of the block before
//	R9  bits of the first bytes of this block that a \u in the block before needs to
//	    be hexadecimal digits
//	BX  what R8 was when this block began
//	DI  every odd bit
//	Y0, Y1  the block      Y7  all bytes of blocks passed or-ed, for their high bits
//	Y8 BACKSLASH  Y9 QUOTE  Y10 LASTCTRL  Y11 simple  Y12 LETTERR
TEXT ·blocksAVX2(SB), NOSPLIT, $0-32
	MOVQ           p+0(FP), SI
	MOVQ           n+8(FP), DX
	SUBQ           $64, DX
	XORL           AX, AX
	XORL           R8, R8
	XORL           R9, R9
	MOVQ           $0xaaaaaaaaaaaaaaaa, DI
	VPXOR          Y7, Y7, Y7
	VPBROADCASTB   BACKSLASH, Y8
	VPBROADCASTB   QUOTE, Y9
	VPBROADCASTB   LASTCTRL, Y10
	VBROADCASTI128 simple<>(SB), Y11
	VPBROADCASTB   LETTERR, Y12

	PCALIGN $32

block:
	// The only loads from the text: 64 bytes, of which AX <= DX says that they are
	// all within it.
	VMOVDQU (SI)(AX*1), Y0
	VMOVDQU 32(SI)(AX*1), Y1

	// Y2, Y3: quotes. Kept for the escapes.
	VPCMPEQB Y0, Y9, Y2
	VPCMPEQB Y1, Y9, Y3

	// Y4, Y5: what ends text, quotes and control characters. There is no unsigned
	// comparison: a byte is at most 0x1f if the lesser of both is that byte.
	VPMINUB  Y0, Y10, Y4
	VPMINUB  Y1, Y10, Y5
	VPCMPEQB Y0, Y4, Y4
	VPCMPEQB Y1, Y5, Y5
	VPOR     Y4, Y2, Y4
	VPOR     Y5, Y3, Y5

	// Y13, Y14: backslashes.
	VPCMPEQB Y0, Y8, Y13
	VPCMPEQB Y1, Y8, Y14

	// Anything at all, here or left over from the block before? R8 and R9 are
	// looked at here, so that they are 0 wherever a block is passed by this way.
	VPOR      Y4, Y5, Y6
	VPOR      Y13, Y14, Y15
	VPOR      Y6, Y15, Y6
	VPMOVMSKB Y6, R10
	ORQ       R8, R10
	ORQ       R9, R10
	JNZ       look

next:
	VPOR Y0, Y7, Y7
	VPOR Y1, Y7, Y7
	ADDQ $64, AX
	CMPQ AX, DX
	JLE  block
	JMP  between

look:
	MASK(Y4, Y5, R10)   // what ends text, unless it is escaped
	MASK(Y13, Y14, R11) // backslashes
	MOVQ R8, BX

	// R13: the bytes that are escaped, and with them in R8 whether the last byte of
	// this block escapes the first of the next. In a row of backslashes every other
	// one escapes, beginning with the first, or the second if the block before
	// escapes the first. R12 has the backslashes without that one. Taking them from
	// the odd bits, among which the byte behind each of them is set as well, borrows
	// through each row to its end, so that what differs from the odd bits afterwards
	// are the backslashes that escape and what stands behind them; of these, what is
	// a backslash escapes. Without R12 both are nothing.
	MOVQ R8, R12
	NOTQ R12
	ANDQ R11, R12
	LEAQ (R12)(R12*1), R13
	ORQ  DI, R13
	SUBQ R12, R13
	XORQ DI, R13
	MOVQ R13, R8
	ANDQ R11, R8
	SHRQ $63, R8
	MOVQ R11, R12
	ORQ  BX, R12
	XORQ R12, R13

	// R12: what is escaped and makes no escape of two bytes.
	VPSHUFB  Y0, Y11, Y4
	VPSHUFB  Y1, Y11, Y5
	VPCMPEQB Y0, Y4, Y4
	VPCMPEQB Y1, Y5, Y5
	VPOR     Y2, Y4, Y4
	VPOR     Y3, Y5, Y5
	VPCMPEQB Y0, Y12, Y2
	VPCMPEQB Y1, Y12, Y3
	VPOR     Y2, Y4, Y4
	VPOR     Y3, Y5, Y5
	MASK(Y4, Y5, R12)
	ORQ      R11, R12
	NOTQ     R12
	ANDQ     R13, R12

	// R10: where text ends. An escaped quote does not end it; an escaped control
	// character does, by R12.
	MOVQ R13, R14
	NOTQ R14
	ANDQ R14, R10

	MOVQ  R12, CX
	ORQ   R9, CX
	JNZ   unicode
	TESTQ R10, R10
	JZ    next
	JMP   stop

unicode:
	// R14: each u that is escaped. R12: what is left of it is no escape at all.
	VPBROADCASTB LETTERU, Y6
	VPCMPEQB     Y0, Y6, Y2
	VPCMPEQB     Y1, Y6, Y3
	MASK(Y2, Y3, R14)
	ANDQ         R13, R14
	MOVQ         R14, CX
	NOTQ         CX
	ANDQ         CX, R12

	// Y2, Y3: letters of hexadecimal digits, both cases made one, and counted from
	// 'a', so that one comparison does for both ends.
	VPBROADCASTB CASEBIT, Y6
	VPOR         Y0, Y6, Y2
	VPOR         Y1, Y6, Y3
	VPBROADCASTB LETTERA, Y6
	VPSUBB       Y6, Y2, Y2
	VPSUBB       Y6, Y3, Y3
	VPBROADCASTB FIVE, Y6
	VPMINUB      Y2, Y6, Y4
	VPMINUB      Y3, Y6, Y5
	VPCMPEQB     Y2, Y4, Y2
	VPCMPEQB     Y3, Y5, Y3

	// Y4, Y5: the other digits, counted from '0'.
	VPBROADCASTB ZERO, Y6
	VPSUBB       Y6, Y0, Y4
	VPSUBB       Y6, Y1, Y5
	VPBROADCASTB NINE, Y6
	VPMINUB      Y4, Y6, Y13
	VPMINUB      Y5, Y6, Y14
	VPCMPEQB     Y4, Y13, Y4
	VPCMPEQB     Y5, Y14, Y5

	// R11: what is no hexadecimal digit.
	VPOR Y2, Y4, Y4
	VPOR Y3, Y5, Y5
	MASK(Y4, Y5, R11)
	NOTQ R11

	// R13: the four bytes behind each u, and those that the block before needs. What
	// of them is no digit makes a bad escape as well.
	LEAQ (R14)(R14*1), R13
	LEAQ (R13)(R13*1), CX
	ORQ  CX, R13
	MOVQ R13, CX
	SHLQ $2, CX
	ORQ  CX, R13
	ORQ  R9, R13
	ANDQ R11, R13
	ORQ  R13, R12

	// R13: those of the four bytes behind a u that are in the next block.
	MOVQ R14, R13
	SHRQ $60, R13
	MOVQ R13, CX
	SHRQ $1, CX
	ORQ  CX, R13
	MOVQ R13, CX
	SHRQ $2, CX
	ORQ  CX, R13

	ORQ  R12, R10
	JNZ  judge
	MOVQ R13, R9
	JMP  next

judge:
	// What comes first decides. The byte at which an escape turns out to be bad is
	// not where it begins, which may be in the block before: such a block is left
	// to words as a whole.
	MOVQ  R10, CX
	NEGQ  CX
	ANDQ  R10, CX
	TESTQ R12, CX
	JZ    stop
	MOVQ  BX, R8

between:
	// Between two blocks. An escape that the one before has begun and not ended is
	// not passed: one byte if R8, else, if R9 has n bits, the 6-n bytes of \u that
	// are there already.
	VPMOVMSKB Y7, R10
	SUBQ      R8, AX
	BSRQ      R9, CX           // n-1; no flag but ZF is defined
	JZ        done
	LEAQ      -5(AX)(CX*1), AX
	JMP       done

stop:
	// Text ends in this block, at the lowest bit of R10; below it and at it is R11.
	// The bytes in front of it count for high, those behind do not.
	BSFQ      R10, CX
	ADDQ      CX, AX
	LEAQ      -1(R10), R11
	XORQ      R10, R11
	MASK(Y0, Y1, R12)
	ANDQ      R11, R12
	VPMOVMSKB Y7, R10
	ORQ       R12, R10

done:
	NEGQ R10      // carries unless it is 0
	SBBQ R10, R10 // all bits, or none
	VZEROUPPER    // what follows may use the narrow instructions
	MOVQ AX, done+16(FP)
	MOVQ R10, high+24(FP)
	RET
