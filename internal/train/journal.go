package train

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"plumbline/internal/format/tfevents"
	"plumbline/internal/rundir"
)

// journal is what a run says of itself: a line of metrics.jsonl, and its numbers in an event file of TensorBoard.
type journal struct {
	lines  *rundir.Log
	events *tfevents.Writer
}

// openLog opens a log of a run that goes on after step, 0 at its start. It says so if a checkpoint was resumed, and also if it has
// lines without one: they are of a process that died before it saved anything.
func openLog(path string, resumed bool, step int) (*rundir.Log, error) {
	info, err := os.Stat(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	log, openErr := rundir.OpenLog(path)
	if openErr != nil || !resumed && (err != nil || info.Size() == 0) {
		return log, openErr
	}
	if err := log.Resume(step); err != nil {
		log.Close()
		return nil, err
	}
	return log, nil
}

// openJournal opens the journal of the run in dir, which goes on after step.
func openJournal(dir string, resumed bool, step int) (*journal, error) {
	lines, err := openLog(filepath.Join(dir, "metrics.jsonl"), resumed, step)
	if err != nil {
		return nil, err
	}
	events, err := tfevents.Create(dir, step+1, time.Now)
	if err != nil {
		lines.Close()
		return nil, err
	}
	return &journal{lines, events}, nil
}

// add appends a line. Its numbers go to TensorBoard, too, where shown says so: there a step has one value.
func (j *journal) add(step int, shown bool, fields []rundir.Field) error {
	if err := j.lines.Append(fields...); err != nil || !shown {
		return err
	}
	var scalars []tfevents.Scalar
	for _, f := range fields {
		switch v := f.Value.(type) {
		case float64:
			scalars = append(scalars, tfevents.Scalar{Tag: f.Key, Value: v})
		case int:
			if f.Key != "step" {
				scalars = append(scalars, tfevents.Scalar{Tag: f.Key, Value: float64(v)})
			}
		}
	}
	return j.events.Add(step, scalars)
}

func (j *journal) close() error { return errors.Join(j.lines.Close(), j.events.Close()) }
