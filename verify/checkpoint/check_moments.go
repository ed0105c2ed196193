package checkpoint

import (
	"encoding/binary"
	"fmt"
	"math"
	"path"
	"slices"
	"strings"

	"plumbline/internal/format"
	"plumbline/internal/format/pickle"
	"plumbline/verify/check"
)

// Moments checks the numbers in the state of an optimiser and of a schedule.
var Moments = &check.Check[*Input]{
	Name: "resume/moments",
	Doc: `the moments are finite and fit each other, and the optimiser and the schedule are at the step of the checkpoint and at one rate

Adam divides by the root of the second moment: a negative or NaN one makes the weights NaN at the first step after a resume. No gradients give an m² beyond
c·v with c = (1−β₁)²/(1−β₂)·Σ(β₁²/β₂)ᵏ over the steps (Cauchy and Schwarz): moments of different parameters do. An
optimiser that is ahead of the checkpoint, or behind it, is of another save: the bias correction and the weights do not belong
together. A schedule may count the steps of several processes. Storages of torch.save are read as bytes; no pickle is loaded.`,
	Source: "V29, V31; resume; faults P010, P118, P124; torch@2.15 optim/adam.py",
	Fix:    "save weights, optimiser and schedule at one place, after the counter moved; go back to the checkpoint before",
	Run:    func(in *Input) ([]check.Result, error) { return each(in.Folder.Units, in.momentFindings) },
}

// torchTypes are the types of storages that hold moments.
var torchTypes = map[string]format.DType{"float64": format.F64, "float32": format.F32, "float16": format.F16, "bfloat16": format.BF16}

// momentParts are what optimisers call their moments; the first are means of gradients, the second means of squares.
var (
	firstMoments  = []string{"exp_avg", "momentum_buffer", "m"}
	secondMoments = []string{"exp_avg_sq", "max_exp_avg_sq", "v"}
)

// values is a run of numbers in a file.
type values struct {
	name   string
	data   *reader
	at, n  int64 // bytes
	dtype  format.DType
	second bool
}

// found is what a pass over values saw.
type found struct {
	bad, negative int
	value         string
}

func (in *Input) momentFindings(u *Unit) (out []check.Result, err error) {
	f, subject := in.Folder, in.Folder.at(u)
	var list []values
	var steps []float64
	for _, p := range u.Pickles {
		if p.Summary == nil || !strings.HasPrefix(path.Base(p.Name), "optim") || len(p.Summary.Problems) > 0 {
			continue
		}
		v, s, err := f.pickledMoments(p)
		if err != nil {
			return nil, err
		}
		list, steps = append(list, v...), append(steps, s...)
	}
	for _, t := range u.tensors(optimizerRole) {
		if t.Array.DType.Float() && slices.Contains(secondMoments, firstPart(t.Name)) {
			r := &reader{tree: f.Tree, name: t.File, pool: f.pool}
			list = append(list, values{t.Name, r, t.Array.Offset, t.Array.Bytes(), t.Array.DType, true})
		}
	}
	facts := make([]found, len(list))
	err = in.parallel("moments", len(list), piece, func(i int, buf []byte) (err error) {
		facts[i], err = list[i].look(buf)
		return err
	})
	if err != nil {
		return nil, err
	}
	var bad, negative []string
	for i, v := range list {
		if facts[i].bad > 0 {
			bad = append(bad, fmt.Sprintf("%s (%d, the first %s)", v.name, facts[i].bad, facts[i].value))
		}
		if facts[i].negative > 0 {
			negative = append(negative, fmt.Sprintf("%s (%d)", v.name, facts[i].negative))
		}
	}
	out = append(out, ifAny(fail, subject, "MOMENT-NAN", "a gradient that was not finite went into the optimiser", "moment", "%s not finite: %s", bad)...)
	out = append(out, ifAny(fail, subject, "MOMENT-SIGN", "overwritten, or first and second moments exchanged", "second moment", "%s negative, whose root is NaN: %s", negative)...)
	if len(bad)+len(negative) == 0 {
		found, err := in.adamFindings(u)
		if err != nil {
			return nil, err
		}
		out = append(out, found...)
	}
	at, known := stepIn(u)
	if n, ok := f.stepOf(u); !known && ok {
		at, known = n, true
	}
	if known && at > 0 && len(steps) > 0 {
		switch most := slices.Max(steps); {
		case most > float64(at):
			out = append(out, fail(subject, "OPT-STEP", "the optimiser of a later save", "the optimiser has made %g steps, the checkpoint is of step %d", most, at))
		case most < float64(at):
			verdict := fail
			if u.hasLike("scaler") { // a step whose gradients overflow in float16 is skipped
				verdict = warn
			}
			out = append(out, verdict(subject, "OPT-STEP", "the optimiser of an earlier save, made anew on a resume, or steps that a scaler skipped", "the optimiser has made %g steps, the checkpoint is of step %d", most, at))
		}
	}
	scheduled := 0
	for _, p := range u.Pickles {
		b := path.Base(p.Name)
		if p.Summary == nil || !known || !strings.HasPrefix(b, "scheduler") && !strings.HasPrefix(b, "lr_scheduler") {
			continue
		}
		i := slices.IndexFunc(p.Summary.Numbers, func(n pickle.Number) bool { return n.Name == "last_epoch" })
		if i < 0 {
			continue
		}
		scheduled++
		// accelerate steps a schedule once for each process.
		if n := p.Summary.Numbers[i].Value; at > 0 && (n <= 0 || n%int64(at) != 0) {
			verdict := fail
			if u.hasLike("scaler") {
				verdict = warn
			}
			if slices.Contains(p.Summary.Keys, "patience") { // ReduceLROnPlateau counts evaluations
				continue
			}
			out = append(out, verdict(subject, "SCHEDULER-STEP", "the schedule of another save: the learning rate jumps after a resume", "last_epoch of %s is %d, the checkpoint is of step %d", b, n, at))
		}
	}
	rates := u.rateFindings(subject)
	if !slices.ContainsFunc(rates, func(r check.Result) bool { return r.Verdict == check.Pass && len(out) > 0 }) {
		out = append(out, rates...)
	}
	if n := len(list) + len(steps) + scheduled; len(out) == 0 && n > 0 {
		out = append(out, pass(subject, n, "%s read, %s", plural(len(list), "moment"), plural(len(steps), "count of steps")))
	}
	return out, nil
}

func firstPart(name string) string {
	first, _, _ := strings.Cut(name, ".")
	return first
}

// pickledMoments returns the storages of moments in a file of torch.save, and the counts of steps.
func (f *Folder) pickledMoments(p *Pickle) (list []values, steps []float64, err error) {
	storages := map[string]*pickle.Storage{}
	for i := range p.Summary.Storages {
		storages[p.Summary.Storages[i].Key] = &p.Summary.Storages[i]
	}
	r := &reader{tree: f.Tree, name: p.Name, pool: f.pool}
	seen := map[string]bool{}
	for i := range p.Summary.Tensors {
		t := &p.Summary.Tensors[i]
		s, d := storages[t.Storage], torchTypes[t.DType]
		if s == nil || s.At == 0 || d == format.Unknown {
			continue
		}
		last := t.Name[strings.LastIndexByte(t.Name, '.')+1:]
		size := int64(d.Size())
		switch {
		case last == "step" && t.Len() == 1 && (t.Offset+1)*size <= s.Bytes:
			var b [8]byte
			if _, err := r.ReadAt(b[:size], s.At+t.Offset*size); err != nil {
				return nil, nil, fmt.Errorf("%s: reading at byte %d: %w", f.shown(p.Name), s.At+t.Offset*size, err)
			}
			x := make([]float64, 1)
			format.Decode(x, b[:size], d, binary.LittleEndian)
			if x[0] == math.Trunc(x[0]) {
				steps = append(steps, x[0])
			}
		case seen[t.Storage] || s.DType != t.DType:
		case slices.Contains(firstMoments, last) || slices.Contains(secondMoments, last):
			seen[t.Storage] = true
			list = append(list, values{t.Name, r, s.At, s.Bytes, d, slices.Contains(secondMoments, last)})
		}
	}
	for _, n := range p.Summary.Numbers {
		if strings.HasPrefix(n.Name, "state.") && strings.HasSuffix(n.Name, ".step") {
			steps = append(steps, float64(n.Value))
		}
	}
	return list, steps, nil
}

// look reads the values once.
func (v *values) look(buf []byte) (s found, err error) {
	m := floatMasks[v.dtype]
	for from := int64(0); from < v.n; from += piece {
		b := buf[:min(piece, v.n-from)]
		if n, err := v.data.ReadAt(b, v.at+from); n < len(b) {
			return s, fmt.Errorf("%s: reading at byte %d: %w", v.name, v.at+from+int64(n), err)
		}
		if bad, _ := look(b, m); bad {
			n, _, value := count(b, v.dtype)
			if s.bad == 0 {
				s.value = value
			}
			s.bad += n
		}
		if v.second {
			s.negative += negatives(b, v.dtype)
		}
	}
	return s, nil
}

// negatives returns how many numbers of b are below 0.
func negatives(b []byte, d format.DType) (n int) {
	const block = 1024
	var x [block]float64
	size := d.Size()
	for len(b) >= size {
		k := min(block, len(b)/size)
		format.Decode(x[:k], b, d, binary.LittleEndian)
		for _, v := range x[:k] {
			if v < 0 {
				n++
			}
		}
		b = b[k*size:]
	}
	return n
}
