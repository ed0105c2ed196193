package runlog

import (
	"bufio"
	"io"
	"unicode/utf16"
	"unicode/utf8"
)

// utf16Reader turns UTF-16 with a byte order mark, what PowerShell redirects into a file, into UTF-8.
type utf16Reader struct {
	in  *bufio.Reader
	big bool
	out []byte
}

func newUTF16(in *bufio.Reader) io.Reader {
	mark := make([]byte, 2)
	_, _ = io.ReadFull(in, mark)
	return &utf16Reader{in: in, big: mark[0] == 0xfe}
}

func (u *utf16Reader) unit() (rune, error) {
	var b [2]byte
	if _, err := io.ReadFull(u.in, b[:]); err != nil {
		if err == io.ErrUnexpectedEOF {
			err = io.EOF
		}
		return 0, err
	}
	if u.big {
		return rune(b[0])<<8 | rune(b[1]), nil
	}
	return rune(b[1])<<8 | rune(b[0]), nil
}

func (u *utf16Reader) Read(p []byte) (int, error) {
	for len(u.out) < len(p) && len(u.out) < 1<<16 {
		c, err := u.unit()
		if err != nil {
			if len(u.out) == 0 {
				return 0, err
			}
			break
		}
		if utf16.IsSurrogate(c) {
			next, err := u.unit()
			if err != nil {
				next = utf8.RuneError
			}
			c = utf16.DecodeRune(c, next)
		}
		u.out = utf8.AppendRune(u.out, c)
	}
	n := copy(p, u.out)
	u.out = u.out[:copy(u.out, u.out[n:])]
	return n, nil
}
