package rundir

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"slices"
	"strconv"

	"plumbline/internal/format"
)

// Log is a file of JSON lines that only grows: metrics.jsonl. Every line is on the disk when Append returns.
type Log struct{ f *os.File }

// maxLog is the size of a log that is read: a million steps have less than half of it.
const maxLog = 1 << 30

// Field is one member of a line, in the order in which it is written.
type Field struct {
	Key   string
	Value any // float64 (also NaN and infinities), int, string, bool, []float64, []string
}

// OpenLog opens a log to append to. A last line without its end, which a process that was killed left, is no line and is taken
// away; whole lines are never touched.
func OpenLog(path string) (*Log, error) {
	f, err := openOwn(path, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, err
	}
	end, err := lastLineEnd(f)
	if err == nil {
		err = f.Truncate(end)
	}
	if err == nil {
		_, err = f.Seek(end, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &Log{f}, nil
}

// CreateLog opens a log that begins anew, whatever the file held.
func CreateLog(path string) (*Log, error) {
	f, err := openOwn(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return nil, err
	}
	return &Log{f}, nil
}

// openOwn opens a file of the run's folder to write to. What lies there in its place is refused if it is not a regular file: a link
// would have the file that it names cut short, a FIFO would be waited on.
func openOwn(path string, flags int) (*os.File, error) {
	info, err := os.Lstat(path)
	if err == nil && !info.Mode().IsRegular() {
		return nil, format.Malformed(path, "", "is no regular file: a run writes to files of its own folder only")
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return os.OpenFile(path, flags|openFlags, 0o644)
}

// lastLineEnd returns the offset after the last newline of f.
func lastLineEnd(f *os.File) (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	buf := make([]byte, 1<<12)
	for end := info.Size(); end > 0; {
		n := min(int64(len(buf)), end)
		if _, err := f.ReadAt(buf[:n], end-n); err != nil {
			return 0, err
		}
		if i := bytes.LastIndexByte(buf[:n], '\n'); i >= 0 {
			return end - n + int64(i) + 1, nil
		}
		end -= n
	}
	return 0, nil
}

// Append writes one line, {"schema":1, …}, and syncs it. Numbers are the shortest that read back the same; those that are not
// finite are the strings "NaN", "Infinity" and "-Infinity".
func (l *Log) Append(fields ...Field) error {
	b := []byte(`{"schema":1`)
	for _, f := range fields {
		b = append(b, ',')
		b = appendJSON(b, f.Key)
		b = append(b, ':')
		b = appendJSON(b, f.Value)
	}
	b = append(b, '}', '\n')
	if _, err := l.f.Write(b); err != nil {
		return err
	}
	return l.f.Sync()
}

// Resume marks that training goes on from a step: the lines after it that are of later steps are of a past that was lost.
func (l *Log) Resume(step int) error {
	return l.Append(Field{"event", "resume"}, Field{"from_step", step})
}

// Close closes the file.
func (l *Log) Close() error { return l.f.Close() }

func appendJSON(b []byte, v any) []byte {
	switch v := v.(type) {
	case float64:
		switch {
		case math.IsNaN(v):
			return append(b, `"NaN"`...)
		case math.IsInf(v, 1):
			return append(b, `"Infinity"`...)
		case math.IsInf(v, -1):
			return append(b, `"-Infinity"`...)
		}
		text, _ := json.Marshal(v)
		return append(b, text...)
	case int:
		return strconv.AppendInt(b, int64(v), 10)
	case []float64:
		b = append(b, '[')
		for i, x := range v {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendJSON(b, x)
		}
		return append(b, ']')
	case bool, string, []string:
		text, _ := json.Marshal(v)
		return append(b, text...)
	}
	panic(fmt.Sprintf("rundir: a line cannot hold a %T", v))
}

// Line is one line of a log.
type Line struct {
	Step int // -1 without one
	Text []byte
}

// ReadLog returns the lines of a log that hold, as if no process had ever been killed: those that a resume took back are left out,
// and so are the marks. A last line without its end is left out too; a line that is not JSON is an error.
func ReadLog(path string) ([]Line, error) {
	f, err := format.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := f.ReadAll(maxLog)
	if err != nil {
		return nil, err
	}
	var lines []Line
	for at := 0; ; {
		n := bytes.IndexByte(data[at:], '\n')
		if n < 0 {
			return held(lines), nil
		}
		text := data[at : at+n]
		step, from, err := lineSteps(path, text, int64(at))
		if err != nil {
			return nil, err
		}
		at += n + 1
		if from >= 0 {
			lines = append(lines, Line{from, nil})
			continue
		}
		lines = append(lines, Line{step, text})
	}
}

// held returns the lines that no resume behind them took back. A resume is a line without text; from the last to the first, the
// lowest of those met decides, so that it takes one pass however many there are.
func held(lines []Line) []Line {
	lowest := math.MaxInt
	for i := range slices.Backward(lines) {
		if l := &lines[i]; l.Text == nil {
			lowest = min(lowest, l.Step)
		} else if l.Step > lowest {
			l.Text = nil
		}
	}
	return slices.DeleteFunc(lines, func(l Line) bool { return l.Text == nil })
}

// lineSteps returns the step of a line and that of a resume, -1 for what it does not have.
func lineSteps(path string, text []byte, base int64) (step, from int, err error) {
	step, from = -1, -1
	s := format.NewScanner(path, text, base)
	err = s.Object(func(key string) error {
		switch key {
		case "step", "from_step":
			n, err := s.Int()
			if err == nil && n < 0 {
				return s.Malformed("step %d", n)
			}
			if key == "step" {
				step = int(n)
			} else {
				from = int(n)
			}
			return err
		}
		return s.Skip()
	})
	if err == nil {
		err = s.End()
	}
	return step, from, err
}
