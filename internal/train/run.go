package train

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"plumbline/internal/dataset"
	"plumbline/internal/format/tfevents"
	"plumbline/internal/rundir"
	"plumbline/verify/symptom"
)

// Env is what a trainer works with.
type Env struct {
	Policy    Policy
	Tokenizer Tokenizer
	Questions []dataset.Question
	HeldOut   []dataset.Question // not trained on
	Run       *rundir.Run
	From      *rundir.Checkpoint // nil: a new run
	ConfigSHA string
	Out       io.Writer                              // the lines of the run
	Warn      func(format string, a ...any)          // symptom, cause, fix
	Observe   func(update int, files []string) error // the dump of an update was written; an error stops the run
	Progress  func(Progress)                         // the run begins, a step was made, or a token was drawn
	// Optimizer makes the optimiser of a run; narrow asks for moments in 8 bits. nil: [NewAdam].
	Optimizer func(params []Param, narrow bool) Optimizer
}

// once holds what was said, by its id.
type once map[string]bool

// warn says a thing once.
func (o once) warn(env Env, id, format string, a ...any) {
	if !o[id] && env.Warn != nil {
		o[id] = true
		env.Warn(format, a...)
	}
}

// Progress says how far a run is.
type Progress struct {
	Step, Steps int     // that were made, of
	Tokens      int     // drawn in the rollout under way, 0 where none is
	Share       float64 // of that rollout that is drawn at least, in [0, 1]: responses may end early
}

// ErrInterrupted says that a run was asked to stop, and has saved where it is.
var ErrInterrupted = errors.New("interrupted")

func (env Env) optimizer(params []Param, narrow bool) Optimizer {
	if env.Optimizer == nil {
		return NewAdam(params, narrow)
	}
	return env.Optimizer(params, narrow)
}

// plan is what a trainer says of a run that begins.
type plan struct {
	trainer   string // in manifests
	model     Model
	base      string // fingerprint of what the run depends on and does not train
	optimizer Optimizer
	steps     int
	every     int // steps between checkpoints; 0: only the last
	// What a checkpoint has beside model, moments and state, nil for nothing; restore reads it after all else.
	// What the rules over logged numbers need to know of the run: kl_beta, vf_coeff and the like. nil: they are not asked.
	options map[string]string
	own     []string // symptoms that the trainer itself says, with what only it knows
	files   func() ([]rundir.File, error)
	restore func(dir string) error
}

// run is the life of a training run, the same for every trainer: it goes on from a checkpoint, keeps the logs, saves, stops when it is
// asked to and ends.
type run struct {
	plan
	env Env
	state
	saved  int // step of the newest checkpoint in the folder of the run, -1 without one
	lines  *rundir.Log
	events *tfevents.Writer
	live   *symptom.Live
}

// begin restores what env.From holds and opens the logs, which are cut back to that step: what comes after it is of a process that
// died, and is made again.
func (env Env) begin(p plan) (*run, error) {
	r := &run{plan: p, env: env, saved: -1}
	if p.options != nil && env.Warn != nil {
		r.live = symptom.NewLive(p.options)
	}
	if err := r.resume(); err != nil {
		return nil, err
	}
	dir := env.Run.Path()
	err := env.Run.CutLogs(r.Step, metricsFile, samplesFile)
	if err == nil {
		r.lines, err = rundir.OpenLog(filepath.Join(dir, metricsFile))
	}
	if err != nil {
		return nil, err
	}
	if r.events, err = tfevents.Create(dir, r.Step+1, time.Now); err != nil {
		r.lines.Close()
		return nil, err
	}
	return r, nil
}

// The logs of a run.
const (
	metricsFile = "metrics.jsonl"
	samplesFile = "samples.jsonl"
)

func (r *run) resume() (err error) {
	from := r.env.From
	if from == nil {
		return nil
	}
	if r.state, err = readState(from.Path); err != nil {
		return err
	}
	if err = r.model.Restore(from.Path); err != nil {
		return err
	}
	if err = r.optimizer.Restore(from.Path, r.Updates); err != nil {
		return err
	}
	if r.plan.restore != nil {
		if err = r.plan.restore(from.Path); err != nil {
			return err
		}
	}
	if was, is := from.Manifest.Variant, r.model.Variant(); was != is && r.env.Warn != nil {
		r.env.Warn("%s was made by %s and the run goes on with %s: sums are rounded otherwise, so it does not end in the bytes of a run by one of them", from.Path, was, is)
	}
	if filepath.Dir(from.Path) == filepath.Clean(r.env.Run.Path()) {
		r.saved = r.Step
		if from.Name == "final" && r.Step < r.steps {
			return r.env.Run.Reopen(from)
		}
	}
	return nil
}

func (r *run) close() error { return errors.Join(r.lines.Close(), r.events.Close()) }

// train calls step, which makes one step or a few and counts them in the state, until all are made, and saves the end. A step that
// returns the error of ctx has changed nothing that a checkpoint holds, but for the state: that is put back. A run that is interrupted
// is saved where it is.
func (r *run) train(ctx context.Context, step func() error) error {
	r.progress(Progress{})
	for r.Step < r.steps {
		before := r.state
		err := step()
		if ctx.Err() != nil && (err == nil || errors.Is(err, ctx.Err())) {
			if err != nil {
				r.state = before
			}
			return r.interrupted()
		}
		if err != nil {
			return err
		}
		r.progress(Progress{})
		if r.Step < r.steps && r.every > 0 && r.Step%r.every == 0 {
			if err := r.save(fmt.Sprintf("step_%d", r.Step)); err != nil {
				return err
			}
		}
	}
	if r.env.From != nil && r.env.From.Name == "final" && r.saved == r.Step {
		return nil // it had ended
	}
	return r.save("final")
}

func (r *run) interrupted() error {
	if r.Step == 0 {
		return fmt.Errorf("%w before its first step: there is nothing to save", ErrInterrupted)
	}
	if r.saved != r.Step {
		if err := r.save(fmt.Sprintf("step_%d", r.Step)); err != nil {
			return err
		}
	}
	return ErrInterrupted
}

// save writes a checkpoint.
func (r *run) save(name string) error {
	if err := r.saveIn(r.env.Run, name); err != nil {
		return err
	}
	r.saved = r.Step
	return nil
}

// saveIn writes a checkpoint into the folder of any run.
func (r *run) saveIn(to *rundir.Run, name string) error {
	m := rundir.Manifest{Step: r.Step, Trainer: r.trainer, ConfigSHA256: r.env.ConfigSHA, BaseFingerprint: r.base, Variant: r.model.Variant(),
		RNG: map[string]uint64{"samples": uint64(r.Samples)}}
	files, err := r.model.Files()
	if err != nil {
		return err
	}
	files = append(files, r.optimizer.File(), r.state.file())
	if r.files != nil {
		more, err := r.files()
		if err != nil {
			return err
		}
		files = append(files, more...)
	}
	return to.Save(name, m, files)
}

// log appends a line to metrics.jsonl. Its numbers go to TensorBoard, too, where shown says so: there a step has one value.
func (r *run) log(step int, shown bool, fields []rundir.Field) error {
	if err := r.lines.Append(fields...); err != nil {
		return err
	}
	r.judge(step, fields)
	if !shown {
		return nil
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
	return r.events.Add(step, scalars)
}

// judge says once what the numbers of a line show: symptom, numbers, cause and fix, by the rules of verify log.
func (r *run) judge(step int, fields []rundir.Field) {
	if r.live == nil {
		return
	}
	values := make([]symptom.Value, 0, len(fields))
	for _, f := range fields {
		switch v := f.Value.(type) {
		case float64:
			values = append(values, symptom.Value{Name: f.Key, Value: v})
		case int:
			values = append(values, symptom.Value{Name: f.Key, Value: float64(v)})
		}
	}
	for _, f := range r.live.Add(step, values) {
		if slices.Contains(r.own, f.ID) {
			continue
		}
		cause := f.Cause
		if f.Better != "" {
			cause = strings.TrimPrefix(cause+"; better: "+f.Better, "; better: ")
		}
		r.env.Warn("step %d: %s (%s): %s. cause: %s. fix: %s", step, f.Title, f.ID, f.Evidence, cause, f.Fix)
	}
}

// sample appends a line to samples.jsonl.
func (r *run) sample(fields ...rundir.Field) error {
	log, err := rundir.OpenLog(filepath.Join(r.env.Run.Path(), samplesFile))
	if err != nil {
		return err
	}
	return errors.Join(log.Append(fields...), log.Close())
}

func (r *run) progress(p Progress) {
	if r.env.Progress != nil {
		p.Step, p.Steps = r.Step, r.steps
		r.env.Progress(p)
	}
}

// rollout shows how far the responses of a step are.
type rollout struct {
	run           *run
	rows, longest int // responses, and the tokens of one at most
	done, tokens  int // in the parts before
	part, drawn   int // responses of this one, and its tokens so far
}

// rollout begins one of so many responses.
func (r *run) rollout(rows, longest int) *rollout {
	return &rollout{run: r, rows: rows, longest: longest}
}

// next returns what [Policy.Sample] calls while it draws so many of the responses.
func (d *rollout) next(rows int) func(Drawn) {
	d.done, d.tokens, d.part, d.drawn = d.done+d.part, d.tokens+d.drawn, rows, 0
	return func(now Drawn) {
		d.drawn = now.Tokens
		share := float64(d.done) + float64(d.part)*float64(now.Position)/float64(d.longest)
		d.run.progress(Progress{Tokens: d.tokens + d.drawn, Share: share / float64(d.rows)})
	}
}

// scored runs the policy, or the frozen model where it is asked for, over the rows of a batch, so many at once. It stops between two
// of these parts when ctx is cancelled.
func scored(ctx context.Context, p Policy, b Batch, at int, policy, frozen bool) (now Scores, ref []float64, err error) {
	for from := 0; from < b.Rows; from += at {
		if err := ctx.Err(); err != nil {
			return now, nil, err
		}
		part := b.rows(span(from, min(at, b.Rows-from)))
		if policy {
			s, err := p.Score(part)
			if err != nil {
				return now, nil, err
			}
			now.LogProbs, now.Values = append(now.LogProbs, s.LogProbs...), append(now.Values, s.Values...)
		}
		if frozen {
			x, err := p.Reference(part)
			if err != nil {
				return now, nil, err
			}
			ref = append(ref, x...)
		}
	}
	return now, ref, nil
}

// span returns from, from+1, … of length n.
func span(from, n int) []int {
	index := make([]int, n)
	for i := range index {
		index[i] = from + i
	}
	return index
}

// padded joins rows of at most cols numbers, with zeros behind each.
func padded(rows [][]float64, cols int) []float64 {
	out := make([]float64, len(rows)*cols)
	for i, x := range rows {
		copy(out[i*cols:(i+1)*cols], x)
	}
	return out
}
