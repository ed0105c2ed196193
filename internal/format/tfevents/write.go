package tfevents

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// Writer appends events to a file.
type Writer struct {
	f   *os.File
	now func() time.Time
}

// Create makes a new event file in dir, with a name that sorts behind those of earlier ones, as TensorBoard reads them. The run
// starts, or goes on, at step.
func Create(dir string, step int, now func() time.Time) (*Writer, error) {
	at := now()
	for n := 0; ; n++ {
		name := filepath.Join(dir, fmt.Sprintf("events.out.tfevents.%010d.%03d.plumbline", at.Unix(), n))
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if errors.Is(err, fs.ErrExist) && n < 1000 {
			continue
		}
		if err != nil {
			return nil, err
		}
		w := &Writer{f, now}
		wall := seconds(at)
		head := Append(nil, Event{WallTime: wall, Version: Version})
		if _, err := f.Write(Append(head, Event{WallTime: wall, Step: int64(step), Start: true})); err != nil {
			f.Close()
			return nil, err
		}
		return w, nil
	}
}

func seconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }

// Add appends the scalars of a step.
func (w *Writer) Add(step int, scalars []Scalar) error {
	_, err := w.f.Write(Append(nil, Event{WallTime: seconds(w.now()), Step: int64(step), Scalars: scalars}))
	return err
}

// Close closes the file.
func (w *Writer) Close() error { return w.f.Close() }
