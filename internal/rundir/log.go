package rundir

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
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

// openOwn opens a file of the run's folder to write to, through the door that refuses links.
func openOwn(path string, flags int) (*os.File, error) {
	return format.OpenOwn(filepath.Dir(path), filepath.Base(path), flags)
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

// ReadLog returns the lines of a log. A last line without its end is left out; a line that is not JSON is an error.
func ReadLog(path string) ([]Line, error) {
	data, err := format.ReadFile(path, maxLog)
	if err != nil {
		return nil, err
	}
	var lines []Line
	for at := 0; ; {
		n := bytes.IndexByte(data[at:], '\n')
		if n < 0 {
			return lines, nil
		}
		text := data[at : at+n]
		step, err := lineStep(path, text, int64(at))
		if err != nil {
			return nil, err
		}
		at += n + 1
		lines = append(lines, Line{step, text})
	}
}

// lineStep returns the step of a line, -1 if it has none.
func lineStep(path string, text []byte, base int64) (step int, err error) {
	step = -1
	s := format.NewScanner(path, text, base)
	err = s.Document(func(key string) error {
		if key != "step" {
			return s.Skip()
		}
		n, err := s.Int()
		if err == nil && n < 0 {
			return s.Malformed("step %d", n)
		}
		step = int(n)
		return err
	})
	return step, err
}

// CutLogs takes from the logs of these names, those that are there, the lines of steps after step and all behind them: they are of a
// process that died after it, or of a future that [Run.Resume] has put aside. What is taken from a log then is kept beside it, as
// NAME.aside-N. A last line without its end is taken away, too. A log that holds another thing than lines of JSON is an error, and stays.
func (r *Run) CutLogs(step int, names ...string) error {
	for _, name := range names {
		if err := r.cutLog(filepath.Join(r.path, name), step); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func (r *Run) cutLog(path string, step int) error {
	f, err := openOwn(path, os.O_RDWR)
	if err != nil {
		return err
	}
	defer f.Close()
	whole, err := lastLineEnd(f)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	end, err := endOf(path, io.NewSectionReader(f, 0, whole), step)
	if err != nil {
		return err
	}
	if end < whole && r.aside {
		to, err := r.asideName(filepath.Base(path))
		if err != nil {
			return err
		}
		if err := format.WriteFile(filepath.Join(r.path, to), func(w io.Writer) error {
			_, err := io.Copy(w, io.NewSectionReader(f, end, whole-end))
			return err
		}); err != nil {
			return err
		}
	}
	if err := f.Truncate(end); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return f.Sync()
}

// maxLine is the longest line of a log that is cut.
const maxLine = 1 << 24

// endOf returns the offset of the first line of a later step than step.
func endOf(path string, log io.Reader, step int) (end int64, err error) {
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, maxLine)
	lines.Split(func(data []byte, _ bool) (int, []byte, error) {
		n := bytes.IndexByte(data, '\n') + 1
		if n == 0 {
			return 0, nil, nil
		}
		return n, data[:n], nil
	})
	for lines.Scan() {
		line := lines.Bytes()
		at, err := lineStep(path, line[:len(line)-1], end)
		if err != nil {
			return 0, err
		}
		if at > step {
			return end, nil
		}
		end += int64(len(line))
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return 0, format.Malformed(path, "", "has a line of more than %d bytes behind byte %d", maxLine, end)
	}
	return end, lines.Err()
}
