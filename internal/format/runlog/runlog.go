// Package runlog reads what trainers log: JSON lines, console lines of TRL, verl, OpenRLHF and of the four systems of this project,
// trainer_state.json, histories of W&B, CSV, nvidia-smi and event files of TensorBoard.
//
// A log is read line by line and never held whole. What a line means is told by the line itself, so a file may mix forms: a console
// log has JSON, warnings and progress bars. A line that no form fits is given as text, and counted by whoever reads it.
package runlog

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"

	"plumbline/internal/format"
	"plumbline/internal/format/tfevents"
)

// Form is how a line was read.
type Form int

const (
	Text      Form = iota // by no form: an error message, a warning, anything
	JSON                  // an object of JSON, or of a history in JSON
	Python                // a dictionary as Python prints it
	Pairs                 // name=number or name: number
	Verl                  // step:1 - name:number - …
	CSV                   // a row under a header
	Events                // TensorBoard
	Iter                  // iter 3: loss … of the GRPO notes
	Micro                 // [Micro 0] 3. Samples scored: …, and 5. Optimizer step finished
	Batch                 // [Batch   50] Reward: …, and [Epoch 1] Val Accuracy: …
	Steps                 // step 3/30 name number name number
	Flow                  // Gradient flow: min=…, max=…, mean=…
	SMI                   // memory of nvidia-smi
	Config                // config key=value
	Progress              // a progress bar without numbers, a heading: understood, and nothing in it
	Duplicate             // the line before, again
)

var forms = [...]string{"text", "JSON", "Python dictionary", "name=value", "verl console", "CSV", "TensorBoard", "iter line", "[Micro] line", "[Batch] line", "step line", "gradient flow", "nvidia-smi", "configuration", "progress", "duplicate"}

func (f Form) String() string { return forms[f] }

// Raw reports whether numbers of this form are written with all their digits.
func (f Form) Raw() bool { return f == JSON || f == CSV || f == Events }

// Shortest reports whether numbers of this form have as many digits as they need: 0.5 may be exact.
func (f Form) Shortest() bool { return f.Raw() || f == Python || f == Verl }

// Field is a number of a line.
type Field struct {
	Name    int     // index into [Reader.Names]
	Value   float64 // NaN where it is missing
	Missing bool    // null, None or an empty cell
	Padded  bool    // written with zeros at its end: to a fixed number of places
	Half    float64 // half a unit of the last digit that was written: how far the number was rounded at most
}

// Row is a line. It is valid until the next one is read.
type Row struct {
	Line   int64
	Form   Form
	Fields []Field
	Text   []byte // of the line, without escape sequences
	Key    string // of [Config]
	Event  string // the value of "event" in JSON: "resume", "validation"
	Raw    bool   // numbers have all their digits
}

// Reader holds the names that were seen and how the lines were read.
type Reader struct {
	Names []string
	Lines int64
	Count [len(forms)]int64 // of lines by form
	Cut   bool              // the last line or record ends too early, as that of a process that was killed
	Bytes int64
	// Known says that a name is that of a metric: a console line with none of them is text.
	Known func(name string) bool

	path   string
	index  map[string]int
	raw    []string // of Names, as they were read
	order  []int    // names of the row before, by the places of their numbers
	row    Row
	each   func(*Row) error
	broken broken
	prev   []byte
	csv    *table
	json   bool // the first line is an object: a later one that is cut is malformed
	depth  int
}

// MaxLine is the longest line in bytes.
const MaxLine = 16 << 20

// MaxNames is the largest number of metrics that a log may have.
const MaxNames = 1 << 16

// maxDocument is the size of the largest JSON document that is not written in lines.
const maxDocument = 256 << 20

// Open reads the log at path and gives every line to each, until it returns an error.
//
// A path that is no regular file, a file with NUL bytes, a line above [MaxLine] and a line cut in the middle of JSON lines are
// malformed. What stood before has been given.
func (r *Reader) Open(path string, each func(*Row) error) error {
	f, err := format.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if f.Size == 0 {
		return format.Malformed(path, "", "is empty, want a log")
	}
	head := make([]byte, 12)
	if n, _ := f.ReadAt(head, 0); strings.Contains(path, "tfevents") || n == 12 && tfevents.Is(head) {
		return r.events(path, each)
	}
	return r.Read(path, f, each)
}

// Read reads a log from a stream; name is for messages.
func (r *Reader) Read(name string, in io.Reader, each func(*Row) error) error {
	r.begin(name, each)
	b := bufio.NewReaderSize(in, 1<<18)
	if head, _ := b.Peek(4); bytes.HasPrefix(head, []byte("\xff\xfe")) || bytes.HasPrefix(head, []byte("\xfe\xff")) {
		b = bufio.NewReaderSize(newUTF16(b), 1<<18)
	}
	if head, _ := b.Peek(3); bytes.Equal(head, []byte("\xef\xbb\xbf")) {
		b.Discard(3)
	}
	head, err := b.Peek(1 << 16)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, bufio.ErrBufferFull) {
		return fmt.Errorf("%s: %w", name, err)
	}
	if i := bytes.IndexByte(head, 0); i >= 0 {
		return format.Malformed(name, format.Offset(int64(i)), "a NUL byte: this is no log")
	}
	if isDocument(head) {
		return r.document(b)
	}
	return r.readLines(b)
}

func (r *Reader) begin(name string, each func(*Row) error) {
	r.path, r.each = name, each
	if r.index == nil {
		r.index = map[string]int{}
	}
	if r.Known == nil {
		r.Known = func(string) bool { return true }
	}
	r.csv, r.json, r.prev, r.broken = nil, false, nil, broken{}
}

func (r *Reader) readLines(b *bufio.Reader) error {
	var long []byte
	for {
		line, err := b.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			if len(long)+len(line) > MaxLine {
				return format.Malformed(r.path, r.where(r.Lines+1), "a line of more than %d bytes", MaxLine)
			}
			long = append(long, line...)
			continue
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("%s: %w", r.path, err)
		}
		if len(long) > 0 {
			long = append(long, line...)
			line = long
		}
		last := err != nil
		if len(line) > 0 {
			r.Lines++
			r.Bytes += int64(len(line))
			if bytes.IndexByte(line, 0) >= 0 {
				return format.Malformed(r.path, r.where(r.Lines), "a NUL byte: this is no log")
			}
			if err := r.line(line, last); err != nil {
				return err
			}
		}
		if cap(long) > 1<<20 {
			long = nil
		}
		long = long[:0]
		if last {
			return r.release(len(line) > 0 && line[len(line)-1] != '\n')
		}
	}
}

func (r *Reader) where(line int64) string { return fmt.Sprintf("line %d", line) }

// line reads one line, and each part of it that a carriage return ends: what a progress bar has written over.
func (r *Reader) line(line []byte, last bool) error {
	cut := last && line[len(line)-1] != '\n'
	for n := len(line); n > 0 && (line[n-1] == '\n' || line[n-1] == '\r'); n = len(line) {
		line = line[:n-1]
	}
	if bytes.IndexByte(line, 0x1b) >= 0 {
		line = stripped(line)
	}
	for {
		i := bytes.IndexByte(line, '\r')
		if i < 0 {
			return r.part(bytes.TrimSpace(line), cut)
		}
		if err := r.part(bytes.TrimSpace(line[:i]), false); err != nil {
			return err
		}
		line = line[i+1:]
	}
}

// part reads a line that has no carriage return.
func (r *Reader) part(s []byte, cut bool) error {
	if len(s) == 0 {
		return nil
	}
	if r.csv == nil && !r.json {
		if done, err := r.hold(s); done || err != nil {
			return err
		}
	}
	return r.whole(s, cut)
}

// whole reads a line, or a part of one, for itself.
func (r *Reader) whole(s []byte, cut bool) error {
	row := &r.row
	row.Line, row.Text, row.Fields, row.Key, row.Event, row.Raw = r.Lines, s, row.Fields[:0], "", "", false
	switch {
	case s[0] == '{' && (len(s) == 1 || s[1] != '\''):
		err := r.object(s)
		if err == nil {
			r.json = r.json || r.Lines == 1
			row.Raw = true
			return r.give(JSON)
		}
		if format.IsMalformed(err) {
			return err
		}
		if cut {
			r.Cut = true
			return nil
		}
		if r.json {
			row.Fields = row.Fields[:0]
			return format.Malformed(r.path, r.where(r.Lines), "an object that is cut or broken, want one of JSON: %v", err)
		}
		row.Fields = row.Fields[:0]
	case r.csv != nil:
		switch ok, err := r.csv.row(r, s); {
		case err != nil:
			return err
		case ok:
			row.Raw = true
			return r.give(CSV)
		case cut:
			r.Cut = true
			return nil
		}
	case r.Lines <= 5:
		if t := r.header(s); t != nil {
			r.csv = t
			return r.give(Progress)
		}
	}
	f, err := r.console(s)
	if err != nil {
		return err
	}
	if f == Text && cut && bytes.HasPrefix(s, []byte("{'")) {
		r.Cut = true
		return nil
	}
	return r.give(f)
}

func (r *Reader) give(f Form) error {
	r.Count[f]++
	r.row.Form = f
	return r.each(&r.row)
}

// name returns the index of a name.
func (r *Reader) name(s []byte) (int, error) {
	at := len(r.row.Fields)
	if at < len(r.order) && r.raw[r.order[at]] == string(s) { // most rows have the names of the one before
		return r.order[at], nil
	}
	if i, ok := r.index[string(s)]; ok {
		if at < len(r.order) {
			r.order[at] = i
		} else if at == len(r.order) {
			r.order = append(r.order, i)
		}
		return i, nil
	}
	if len(r.Names) == MaxNames {
		return 0, format.Malformed(r.path, r.where(r.Lines), "more than %d names of metrics", MaxNames)
	}
	name := cleanName(s)
	r.index[string(s)] = len(r.Names)
	r.raw = append(r.raw, string(s))
	r.Names = append(r.Names, name)
	return len(r.Names) - 1, nil
}

// add adds a number to the row.
func (r *Reader) add(name []byte, v float64, missing bool, half float64, padded bool) error {
	i, err := r.name(name)
	if err != nil {
		return err
	}
	r.row.Fields = append(r.row.Fields, Field{Name: i, Value: v, Missing: missing, Half: half, Padded: padded})
	return nil
}

// token adds a number that is written as tok.
func (r *Reader) token(name, tok []byte) (ok bool, err error) {
	v, missing, ok := number(tok)
	if !ok {
		return false, nil
	}
	unit, padded := half(tok)
	return true, r.add(name, v, missing, unit, padded)
}

// stripped returns a line without escape sequences (ECMA-48: CSI, OSC and two-byte ones).
func stripped(s []byte) []byte {
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != 0x1b {
			out = append(out, s[i])
			continue
		}
		if i++; i >= len(s) {
			break
		}
		switch s[i] {
		case '[':
			for i++; i < len(s) && (s[i] < 0x40 || s[i] > 0x7e); i++ {
			}
		case ']':
			for i++; i < len(s) && s[i] != 7 && s[i] != 0x1b; i++ {
			}
			if i < len(s) && s[i] == 0x1b && i+1 < len(s) && s[i+1] == '\\' {
				i++
			}
		}
	}
	return out
}

// events reads an event file. Every scalar is a row of its own, unless it shares an event with others.
func (r *Reader) events(path string, each func(*Row) error) error {
	r.begin(path, each)
	step, err := r.name([]byte("step"))
	if err != nil {
		return err
	}
	open := false
	var at int64
	flush := func() error {
		if !open || len(r.row.Fields) < 2 {
			return nil
		}
		open = false
		return r.give(Events)
	}
	cut, err := tfevents.Read(path, func(e tfevents.Event) error {
		r.Lines++
		if len(e.Scalars) == 0 {
			return nil
		}
		if !open || e.Step != at { // writers of PyTorch put each number of a step into an event of its own
			if err := flush(); err != nil {
				return err
			}
			open, at = true, e.Step
			r.row = Row{Line: r.Lines, Raw: true, Fields: append(r.row.Fields[:0], Field{Name: step, Value: float64(e.Step)})}
		}
		for _, s := range e.Scalars {
			i, err := r.name([]byte(s.Tag))
			if err != nil {
				return err
			}
			r.row.Fields = append(r.row.Fields, Field{Name: i, Value: s.Value, Half: math.Abs(s.Value) * 0x1p-24})
		}
		return nil
	})
	r.Cut = r.Cut || cut
	return errors.Join(flush(), err)
}
