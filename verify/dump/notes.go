package dump

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"slices"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
	"plumbline/verify/tol"
)

// Record is what a judgement of some steps of a run takes down of one of them, for a judgement of all steps that need not read it
// again: of a step what the rules across steps look at, of a unit (a step, the steps of a rollout, a step among those before it) the
// verdict and counts of every outcome. Records decide nothing by themselves: what they do not hold is read and judged again. Floats
// are kept by their bits, so that NaN, infinities and every digit survive. Several records may have one key: they complete each other.
type Record struct {
	Key  string     `json:"key"`
	Step *StepNotes `json:"step,omitempty"`
	Unit *UnitNotes `json:"unit,omitempty"`
}

// Notes give the records of a key, none where there are none.
type Notes interface {
	Records(key string) ([]Record, error)
}

// StepKey is the key of what the rules across steps look at.
func StepKey(step int) string { return fmt.Sprintf("step %d", step) }

// UnitNotes is what is known of one unit.
type UnitNotes struct {
	Outcomes map[string]map[string]*judged `json:"outcomes,omitempty"` // by the options, then by the check
	Groups   map[string]overSteps          `json:"groups,omitempty"`   // by the options
	Weighed  *weighed                      `json:"weighed,omitempty"`
}

// overSteps is what [stage.GroupsOverSteps] says of steps.
type overSteps struct{ Cut, Linked bool }

// weighed is what the scores of a batch say of the weights of the reward functions.
type weighed struct {
	There   bool     `json:"there"` // the rewards of each function are in the dump
	Weights []uint64 `json:"weights,omitempty"`
}

// judged is an outcome without its arrays.
type judged struct {
	Verdict    check.Verdict `json:"v"`
	Tally      bool          `json:"tally,omitempty"`
	N          int           `json:"n,omitempty"`
	Failed     int           `json:"failed,omitempty"`
	Exact      int           `json:"exact,omitempty"`
	ToLast     int           `json:"to_last,omitempty"`
	Ratio      uint64        `json:"ratio,omitempty"`
	Resolution uint64        `json:"resolution,omitempty"`
	Rules      bool          `json:"rules,omitempty"`
	Checked    int           `json:"checked,omitempty"`
	Violations int           `json:"violations,omitempty"`
	Exercised  bool          `json:"exercised,omitempty"`
	Unit       uint64        `json:"unit,omitempty"` // of the arithmetic
	Casts      bool          `json:"casts,omitempty"`
	Promoted   bool          `json:"promoted,omitempty"`
	Declared   bool          `json:"declared,omitempty"`
	Read       []string      `json:"read,omitempty"` // options, of a failure
	Unknown    []string      `json:"unknown,omitempty"`
	Absent     []string      `json:"absent,omitempty"`
}

// StepNotes is what the rules across steps look at in one step.
type StepNotes struct {
	Step       int           `json:"step"`
	Files      []string      `json:"sha256,omitempty"` // of its files, in order
	Rows       int           `json:"rows"`
	Cols       int           `json:"cols"`
	Names      []string      `json:"names"`
	Types      []int         `json:"types"` // of the tensors of these names, as [format.DType]
	Missing    []string      `json:"missing,omitempty"`
	Notes      []string      `json:"notes,omitempty"`
	Unread     []dump.Unread `json:"unread,omitempty"`
	Grids      []uint64      `json:"grids"` // see [recognised], of the tensors that tell of arithmetic
	Ratios     bool          `json:"ratios,omitempty"`
	References bool          `json:"references,omitempty"`
	Advantages bool          `json:"advantages,omitempty"`
	Exercised  []string      `json:"exercised,omitempty"` // tensors that were looked at for these three

	Keys   []string `json:"keys"` // of the rows: see [rowKeys]
	ByID   bool     `json:"by_id,omitempty"`
	Tokens int      `json:"tokens,omitempty"`
	Alike  bool     `json:"alike,omitempty"`  // the reference is the old policy bit by bit, in more than 16 bits
	Moved  bool     `json:"moved,omitempty"`  // the policy has left the old log-probs
	Learnt bool     `json:"learnt,omitempty"` // some gradient is not 0; where there is none, some advantage
	Engine *engine  `json:"engine,omitempty"` // its difference to the trainer
	Update *engine  `json:"update,omitempty"` // the difference of its new log-probs to the old ones
	Starts []start  `json:"starts,omitempty"` // of the rows
}

// engine is a [stage.Discrepancy] by the bits of its numbers.
type engine struct {
	Tokens int        `json:"tokens"`
	Same   bool       `json:"same,omitempty"`
	Bits   [10]uint64 `json:"bits"`
}

func engineOf(d stage.Discrepancy) *engine {
	e := &engine{Tokens: d.Tokens, Same: d.Same}
	for i, x := range []*float64{&d.MeanAbs, &d.AbsSE, &d.K3, &d.K3SE, &d.ESS, &d.Outside, &d.Scale, &d.Slope, &d.Explains, &d.SlopeZ} {
		e.Bits[i] = math.Float64bits(*x)
	}
	return e
}

func (e *engine) discrepancy() stage.Discrepancy {
	d := stage.Discrepancy{Tokens: e.Tokens, Same: e.Same}
	for i, x := range []*float64{&d.MeanAbs, &d.AbsSE, &d.K3, &d.K3SE, &d.ESS, &d.Outside, &d.Scale, &d.Slope, &d.Explains, &d.SlopeZ} {
		*x = math.Float64frombits(e.Bits[i])
	}
	return d
}

// look takes down what the rules across steps look at in a batch. It depends on nothing else.
func look(b *dump.Batch) *StepNotes {
	n := &StepNotes{Step: b.Meta.Step, Rows: b.Rows, Cols: b.Cols, Names: b.Names(), Missing: b.Missing, Notes: b.Notes, Unread: b.Unread}
	for _, name := range n.Names {
		n.Types = append(n.Types, int(b.Tensors[name].Type))
	}
	for _, name := range computedTensors {
		if t := b.Tensors[name]; t != nil {
			n.Grids = append(n.Grids, math.Float64bits(recognised(b, t)))
		}
	}
	n.exercises(b)
	n.Starts = starts(b)
	n.Keys, n.ByID = digests(rowKeys(b)), b.Row("sample_id") != nil
	for _, m := range b.Mask {
		if m {
			n.Tokens++
		}
	}
	c := stage.NewCase(b, &convention.Set{}, tol.U32)
	old := "logp_old"
	if b.Token(old) == nil {
		old = "logp_new"
	}
	if d, ok := c.Discrepant(old, "logp_ref"); ok {
		n.Alike = d.Same && d.Tokens >= fewAlike && !coarse(b, "logp_ref") // in 16 bits a small update may change nothing
	}
	if pairs, same := pairsAlike(b); same {
		n.Alike = 2*pairs >= fewAlike
	}
	if d, ok := c.Discrepant("logp_old", "logp_new"); ok {
		n.Update = engineOf(d)
		n.Moved = !d.Same && (d.MeanAbs > 0.02 || d.MeanAbs > 1e-4 && !coarse(b, "logp_old"))
	}
	for _, name := range []string{"dlogp", "dlogp_chosen", "advantages"} {
		if t := b.Tensors[name]; t != nil { // a gradient of 0 moves nothing, whatever the advantages are
			n.Learnt = slices.ContainsFunc(t.Data, func(x float64) bool { return x != 0 && !math.IsNaN(x) })
			break
		}
	}
	if _, same := pairsAlike(b); same && b.Tensors["dlogp_chosen"] == nil {
		n.Learnt = true // every preference loss has a slope at the margin 0
	}
	if d, ok := c.Discrepant("logp_old", "logp_gen"); ok {
		n.Engine = engineOf(d)
	}
	return n
}

// pairsAlike reports whether the log-probs of all answers of a preference dump are those of the reference bit by bit, in more than 16 bits.
func pairsAlike(b *dump.Batch) (pairs int, same bool) {
	for _, answer := range []string{"chosen", "rejected"} {
		lp, ref := b.Row("logp_"+answer), b.Row("ref_"+answer)
		if lp == nil || ref == nil || !slices.Equal(lp, ref) || coarse(b, "ref_"+answer) {
			return 0, false
		}
		pairs = len(lp)
	}
	return pairs, true
}

// digests shortens the names of rows that are longer than a digest.
func digests(keys []string) []string {
	for i, k := range keys {
		if len(k) > 32 {
			sum := sha256.Sum256([]byte(k))
			keys[i] = hex.EncodeToString(sum[:16])
		}
	}
	return keys
}

// has reports whether the step has a tensor.
func (n *StepNotes) has(name string) bool { return slices.Contains(n.Names, name) }

// kind returns the type as which a tensor was stored.
func (n *StepNotes) kind(name string) format.DType {
	return format.DType(n.Types[slices.Index(n.Names, name)])
}

// judgement is an outcome, or what is known of it.
type judgement struct {
	*stage.Outcome
	resolution float64
	exercised  bool
	whole      func() (*stage.Outcome, error) // judges it again, with its arrays; nil: they are there
}

// judgementOf measures an outcome.
func judgementOf(o *stage.Outcome) judgement {
	j := judgement{Outcome: o, exercised: exercised(o)}
	if o.Tally != nil {
		j.resolution = o.Tally.Resolution()
	}
	return j
}

// note returns what there is to remember of a judgement.
func (j judgement) note() *judged {
	o := j.Outcome
	n := &judged{Verdict: o.Verdict, Exact: o.Exact, ToLast: o.ToLast, Exercised: j.exercised, Resolution: math.Float64bits(j.resolution), Unit: math.Float64bits(o.Arithmetic.Unit),
		Casts: o.Arithmetic.Casts, Promoted: o.Arithmetic.Promoted, Declared: o.Arithmetic.Declared, Unknown: slices.Clone(o.Case.Unknown), Absent: slices.Clone(o.Case.Absent)}
	if o.Verdict == check.NotSeen || o.Verdict == check.Skip {
		return &judged{Verdict: o.Verdict}
	}
	if o.Verdict == check.Fail {
		n.Read = slices.Clone(o.Case.Read)
	}
	if t := o.Tally; t != nil {
		n.Tally, n.N, n.Failed, n.Ratio = true, t.N, t.Failed, math.Float64bits(t.Worst.Ratio)
	}
	if r := o.Rules; r != nil {
		n.Rules, n.Checked, n.Violations = true, r.Checked, len(r.Violations)
	}
	return n
}

// outcome is the inverse of note, without arrays.
func (n *judged) outcome(ch *stage.Check, b *dump.Batch, set *convention.Set) judgement {
	o := &stage.Outcome{Check: ch, Verdict: n.Verdict, Exact: n.Exact, ToLast: n.ToLast, Case: &stage.Case{B: b, Set: set, Read: slices.Clone(n.Read), Unknown: slices.Clone(n.Unknown), Absent: slices.Clone(n.Absent)},
		Arithmetic: stage.Arithmetic{Unit: math.Float64frombits(n.Unit), Casts: n.Casts, Promoted: n.Promoted, Declared: n.Declared}}
	if n.Tally {
		o.Tally = &tol.Tally{N: n.N, Failed: n.Failed, Worst: tol.Element{Ratio: math.Float64frombits(n.Ratio)}}
	}
	if n.Rules {
		o.Rules = &stage.Assertion{Checked: n.Checked, Violations: make([]stage.Violation, n.Violations)}
	}
	return judgement{Outcome: o, resolution: math.Float64frombits(n.Resolution), exercised: n.Exercised}
}

// keyOf names a set of options by what it says, not by who says it.
func keyOf(set *convention.Set) string {
	sum := sha256.Sum256([]byte(set.Text()))
	return hex.EncodeToString(sum[:8])
}

// view is a batch that is judged, which may not have been read yet.
type view struct {
	b     *dump.Batch // whole, or with masks and metadata only
	key   string      // "": nothing is known or taken down of it
	read  func() (*dump.Batch, error)
	names func(name string) bool // whether it has a tensor; nil: the batch says so

	dress func(*convention.Set) *convention.Set // adds facts that stand in the key; nil: none
}

// whole returns the batch with its tensors.
func (v *view) whole() (*dump.Batch, error) {
	if v.read == nil {
		return v.b, nil
	}
	b, err := v.read()
	if err != nil {
		return nil, err
	}
	v.b, v.read = b, nil
	return b, nil
}

// judge judges a check on a unit, or says what is known of it.
func (s *session) judge(ch *stage.Check, v *view, set *convention.Set) judgement {
	dressed := set
	if v.dress != nil {
		dressed = v.dress(set)
	}
	anew := func() (*stage.Outcome, error) {
		b, err := v.whole()
		if err != nil {
			return nil, err
		}
		return stage.Judge(ch, b, dressed), nil
	}
	l := s.ledger
	if v.key != "" && v.read != nil {
		if u := s.known(v.key); u != nil {
			if n := u.Outcomes[l.key(set)][ch.ID]; n != nil {
				j := n.outcome(ch, v.b, dressed)
				j.whole = anew
				return j
			}
		}
	}
	o, err := anew()
	if err != nil {
		s.fail(err)
		return judgement{Outcome: &stage.Outcome{Check: ch, Verdict: check.Skip, Case: stage.NewCase(v.b, set, tol.U32)}}
	}
	j := judgementOf(o)
	if v.key != "" && l.write != nil {
		u, key := l.unit(v.key), l.key(set)
		if u.Outcomes[key] == nil {
			u.Outcomes[key] = map[string]*judged{}
		}
		u.Outcomes[key][ch.ID] = j.note()
	}
	return j
}

// complete returns the outcome of a judgement with its arrays.
func (s *session) complete(j judgement) *stage.Outcome {
	if j.whole == nil {
		return j.Outcome
	}
	o, err := j.whole()
	if err != nil {
		s.fail(err)
		return j.Outcome
	}
	return o
}

// fail remembers the first error of reading a step that is judged.
func (s *session) fail(err error) {
	if s.err == nil {
		s.err = err
	}
}

// Light is a [Source] that gives the masks and the metadata of a step without its tensors.
type Light interface {
	Light(step int) (*dump.Batch, error)
}

// at returns a step to judge and what the rules across steps see of it.
func (s *session) at(step int) (*view, *StepNotes, error) {
	read := func() (*dump.Batch, error) { return s.run.Batch(s.ctx, step) }
	key := fmt.Sprint(step)
	n, err := s.ledger.stepNotes(step)
	if err != nil {
		return nil, nil, err
	}
	if n != nil {
		if light, ok := s.run.(Light); ok {
			b, err := light.Light(step)
			if err != nil {
				return nil, nil, err
			}
			if b.Rows == n.Rows && b.Cols == n.Cols {
				b.Missing, b.Notes, b.Unread, b.Tensors = n.Missing, n.Notes, n.Unread, nil
				return &view{b: b, key: key, read: read, names: n.has}, n, nil
			}
		}
	}
	b, err := read()
	if err != nil {
		return nil, nil, err
	}
	n = look(b)
	if w := s.ledger.write; w != nil {
		w.step = n
	}
	return &view{b: b, key: key}, n, nil
}

// again returns a step that was judged before.
func (s *session) again(step int) (*view, error) {
	write := s.ledger.write
	if write == nil {
		v, _, err := s.at(step)
		return v, err
	}
	b, err := s.run.Batch(s.ctx, step)
	return &view{b: b, key: fmt.Sprint(step)}, err
}

// weigh returns the weights of the reward functions that the scores of a unit give, and whether the rewards of each are there.
func (s *session) weigh(v *view) (weights []float64, there bool) {
	if v.key != "" && v.read != nil {
		if u := s.known(v.key); u != nil && u.Weighed != nil {
			for _, bits := range u.Weighed.Weights {
				weights = append(weights, math.Float64frombits(bits))
			}
			return weights, u.Weighed.There
		}
	}
	b, err := v.whole()
	if err != nil {
		s.fail(err)
		return nil, false
	}
	there = b.Tensors["rewards_per_func"] != nil
	if there {
		weights = stage.RewardWeights(b)
	}
	if v.key != "" && s.ledger.write != nil {
		w := &weighed{There: there}
		for _, x := range weights {
			w.Weights = append(w.Weights, math.Float64bits(x))
		}
		s.ledger.unit(v.key).Weighed = w
	}
	return weights, there
}
