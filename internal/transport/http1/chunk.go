package http1

const (
	// maxSizeDigits bounds the hexadecimal digits of a chunk's size.
	maxSizeDigits = 16
	// maxExtension bounds the extension of one chunk in bytes, and maxExtensions all
	// extensions of a body: otherwise a peer could send them endlessly.
	maxExtension  = 1 << 10
	maxExtensions = 16 << 10
	// maxTrailer and maxTrailerLines bound the trailer after the last chunk.
	maxTrailer      = 8 << 10
	maxTrailerLines = 64
)

type chunkState uint8

const (
	atSize         chunkState = iota // first digit of a size
	inSize                           // further digits, then ';' or CR
	inExtension                      // until CR
	atSizeLF                         // the LF after a size
	inData                           // left bytes remain
	atDataCR                         // the CR after the data
	atDataLF                         // the LF after that
	atTrailer                        // a trailer line, or the CR of the last empty line
	inTrailerName                    // a trailer's name
	inTrailerValue                   // a trailer's value, until CR
	atTrailerLF                      // the LF after it
	atLastLF                         // the LF of the last empty line
	atEnd                            // the body is complete
)

// ChunkDecoder removes the chunked framing from a body (RFC 9112, 7.1), which may arrive in
// pieces of any size. The zero value is at the beginning of a body.
type ChunkDecoder struct {
	state        chunkState
	left         int64 // the size read so far, then the remaining bytes of data
	count        int   // digits, bytes of an extension, bytes of the trailer
	trailerLines int   // lines of the trailer
	extensionSum int   // bytes of all extensions
}

// Done reports whether the body is complete.
func (d *ChunkDecoder) Done() bool { return d.state == atEnd }

// Decode copies the data in src to dst until dst is full or the body ends. It returns the
// number n of bytes written and the number used of bytes read. dst may be at the start of
// src, because data without framing is shorter.
func (d *ChunkDecoder) Decode(dst, src []byte) (n, used int, err error) {
	for used < len(src) && d.state != atEnd {
		if d.state == inData {
			m := min(int64(len(src)-used), d.left, int64(len(dst)-n))
			if m == 0 {
				break
			}
			copy(dst[n:], src[used:used+int(m)])
			n, used = n+int(m), used+int(m)
			if d.left -= m; d.left == 0 {
				d.state = atDataCR
			}
			continue
		}
		if err = d.step(src[used]); err != nil {
			return n, used, err
		}
		used++
	}
	return n, used, nil
}

// step consumes one byte of framing.
func (d *ChunkDecoder) step(c byte) error {
	switch d.state {
	case atSize, inSize:
		return d.size(c)
	case inExtension:
		return d.extension(c)
	case atSizeLF:
		if c != '\n' {
			return ErrChunkSize
		}
		d.count = 0
		d.state = inData
		if d.left == 0 {
			d.state = atTrailer
		}
	case atDataCR:
		if c != '\r' {
			return ErrChunkEnd
		}
		d.state = atDataLF
	case atDataLF:
		if c != '\n' {
			return ErrChunkEnd
		}
		d.state = atSize
	case atTrailer, inTrailerName, inTrailerValue, atTrailerLF, atLastLF:
		return d.trailer(c)
	case inData, atEnd:
	}
	return nil
}

func (d *ChunkDecoder) size(c byte) error {
	digit := hexDigit(c)
	switch {
	case digit >= 0:
	case d.state == atSize:
		return ErrChunkSize
	case c == ';':
		d.state, d.count = inExtension, 0
		return nil
	case c == '\r':
		d.state = atSizeLF
		return nil
	default:
		return ErrChunkSize
	}
	if d.state == atSize {
		d.state, d.left, d.count = inSize, 0, 0
	}
	if d.count++; d.count > maxSizeDigits || d.left > 1<<58 {
		return ErrChunkSize
	}
	d.left = d.left<<4 | digit
	return nil
}

// extension skips a chunk's extension, as RFC 9112, 7.1.1 requires for unknown ones.
func (d *ChunkDecoder) extension(c byte) error {
	if c == '\r' {
		d.state = atSizeLF
		return nil
	}
	d.count++
	d.extensionSum++
	if !isValue(c) || d.count > maxExtension || d.extensionSum > maxExtensions {
		return ErrExtension
	}
	return nil
}

// trailer checks the lines after the last chunk and drops them.
func (d *ChunkDecoder) trailer(c byte) error {
	if d.count++; d.count > maxTrailer {
		return ErrLargeTrailer
	}
	switch d.state {
	case atTrailer:
		if c == '\r' {
			d.state = atLastLF
			return nil
		}
		if d.trailerLines++; d.trailerLines > maxTrailerLines {
			return ErrLargeTrailer
		}
		if !IsToken(c) {
			return ErrTrailer
		}
		d.state = inTrailerName
	case inTrailerName:
		if c == ':' {
			d.state = inTrailerValue
		} else if !IsToken(c) {
			return ErrTrailer
		}
	case inTrailerValue:
		if c == '\r' {
			d.state = atTrailerLF
		} else if !isValue(c) {
			return ErrTrailer
		}
	case atTrailerLF, atLastLF:
		if c != '\n' {
			return ErrTrailer
		}
		if d.state == atLastLF {
			d.state = atEnd
		} else {
			d.state = atTrailer
		}
	default:
	}
	return nil
}

// hexDigit returns the value of a hexadecimal digit, -1 for any other byte.
func hexDigit(c byte) int64 {
	switch {
	case '0' <= c && c <= '9':
		return int64(c - '0')
	case 'a' <= c && c <= 'f':
		return int64(c-'a') + 10
	case 'A' <= c && c <= 'F':
		return int64(c-'A') + 10
	}
	return -1
}
