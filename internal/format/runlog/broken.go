package runlog

import "bytes"

// broken is a dictionary that a console has broken into lines: what was read of it so far.
type broken struct {
	text  []byte  // the lines, joined by spaces
	ends  []int   // in text, of each line
	lines []int64 // their numbers
}

// Bounds of a dictionary in many lines.
const (
	mostBroken = 64
	longBroken = 1 << 14
)

// opens reports whether a line ends within a dictionary, where a console may break it: behind a comma or a colon.
func opens(s []byte) bool {
	if c := s[len(s)-1]; c != ',' && c != ':' {
		return false
	}
	i := bytes.LastIndex(s, []byte("{'"))
	return i >= 0 && bytes.IndexByte(s[i:], '}') < 0
}

// hold takes a line that opens a dictionary or goes on with one; done says that there is nothing more to do with it. A dictionary that is
// whole is read as one line, that of its beginning.
func (r *Reader) hold(s []byte) (done bool, err error) {
	b := &r.broken
	if len(b.lines) == 0 {
		if !opens(s) {
			return false, nil
		}
		b.add(s, r.Lines)
		return true, nil
	}
	c := s[len(s)-1]
	if s[0] == '{' || len(b.lines) == mostBroken || len(b.text)+len(s) > longBroken || c != ',' && c != ':' && c != '}' {
		if err := r.release(false); err != nil {
			return true, err
		}
		return r.hold(s)
	}
	b.add(s, r.Lines)
	if c != '}' {
		return true, nil
	}
	at := r.Lines
	r.Lines = b.lines[0]
	r.row.Line, r.row.Text, r.row.Fields, r.row.Key, r.row.Event, r.row.Raw = r.Lines, b.text, r.row.Fields[:0], "", "", false
	f, ok, err := r.python(b.text)
	if ok && err == nil {
		b.forget()
		err = r.give(f)
	}
	r.Lines = at
	if ok || err != nil {
		return true, err
	}
	return true, r.release(false)
}

// release reads the lines that were held each for itself; cut says that the last one has no end.
func (r *Reader) release(cut bool) error {
	b := r.broken
	r.broken = broken{}
	from, at := 0, r.Lines
	defer func() { r.Lines = at }()
	for i, end := range b.ends {
		r.Lines = b.lines[i]
		if err := r.whole(b.text[from:end], cut && i == len(b.ends)-1); err != nil {
			return err
		}
		from = end + 1
	}
	return nil
}

func (b *broken) add(s []byte, line int64) {
	if len(b.lines) > 0 {
		b.text = append(b.text, ' ')
	}
	b.text = append(b.text, s...)
	b.ends, b.lines = append(b.ends, len(b.text)), append(b.lines, line)
}

func (b *broken) forget() { b.text, b.ends, b.lines = b.text[:0], b.ends[:0], b.lines[:0] }
