package dump

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
	"plumbline/verify/tol"
)

// numberFormats is what the numbers of a run say of the formats that they were stored and computed in.
type numberFormats struct {
	stored   map[string]format.DType // of computed tensors
	grid     map[string]float64      // unit roundoff of the format that holds all elements of a tensor; absent where none tells
	declared string                  // compute_dtype
	lossy    []string
	model    string    // dtype of the model, as the trainer declares it
	logged   []float64 // losses of the metadata, which have more bits than the tensors

	looked   int                // steps on which the arithmetic was looked at
	evidence map[string]float64 // by check: log-likelihood of arithmetic in 16 bits over that of rounding on storing
	float32  map[string]float64 // resolution of the checks if the same numbers had been stored and computed in float32
}

// computedTensors are those whose bits tell of arithmetic: ids, masks and scores are of few bits anyway.
var computedTensors = []string{"logp_new", "logp_old", "logp_gen", "logp_ref", "values", "values_new", "token_rewards", "kl", "advantages", "returns",
	"entropy", "is_weights", "token_loss", "dlogp", "dvalues", "logits"}

// voters are the checks that tell arithmetic in 16 bits from storing, the surest first: their outputs come from differences of
// log-probs, which rounding the log-probs changes by more than rounding the difference. A token loss that fits arithmetic in 16
// bits better is no proof of it; gradients, returns and whitened advantages have more inputs than the pattern of errors tells.
var voters = []string{"kl/token", "ratio/is_weights", "token_loss/policy"}

// loggedLosses are the numbers of the metadata whose bits tell of arithmetic.
var loggedLosses = []string{"loss", "pg_loss", "kl_loss", "value_loss"}

const (
	mostLogged  = 1024
	manyCells   = 200_000 // of a batch from which on its arithmetic is looked at on some rows, once
	fewValues   = 12      // different ones below which a grid may be that of the data
	formatSteps = 3
	telling     = 5  // log-likelihood from which on the arithmetic is said to be recognised
	certain     = 50 // of a bound that does not hold
)

// observe takes the formats of a batch down, and looks at its arithmetic if 16 bits are in it.
func (s *session) observe(v *view, seen *StepNotes, set *convention.Set) {
	b, n := v.b, &s.formats
	if n.stored == nil {
		n.stored, n.grid = map[string]format.DType{}, map[string]float64{}
		n.evidence, n.float32 = map[string]float64{}, map[string]float64{}
	}
	n.declared, n.lossy = b.Meta.ComputeDType, b.Meta.Lossy
	for _, o := range b.Meta.Options {
		if text, ok := o.Value.(string); ok && (o.Name == "dtype" || o.Name == "torch_dtype" || o.Name == "model_dtype") {
			n.model = text
		}
	}
	for _, f := range b.Files {
		for _, x := range f.Scalars {
			if slices.Contains(loggedLosses, x.Name) && len(n.logged) < mostLogged {
				n.logged = append(n.logged, x.Value)
			}
		}
	}
	u, _ := stage.UnitOf(n.declared)
	coarse := u > tol.U32
	at := 0 // in the grids
	for _, name := range computedTensors {
		if !seen.has(name) {
			continue
		}
		kind, g := seen.kind(name), math.Float64frombits(seen.Grids[at])
		at++
		n.stored[name] = kind
		if old, before := n.grid[name]; g > 0 && (!before || g < old) {
			n.grid[name] = g
		}
		coarse = coarse || kind == format.BF16 || kind == format.F16 || g > tol.U32
	}
	if !coarse || n.looked >= formatSteps || n.looked > 0 && len(b.Mask) > manyCells {
		return
	}
	n.looked++
	if s.ledger.write != nil { // that is for the whole run to decide
		return
	}
	b, err := v.whole()
	if err != nil {
		s.fail(err)
		return
	}
	full := inFloat32(b)
	for _, t := range s.tracks {
		if t.silent || t.check.Predict == nil {
			continue
		}
		if o := stage.Judge(t.check, full, set); o.Tally != nil && o.Tally.N > 0 {
			n.float32[t.check.ID] = max(n.float32[t.check.ID], o.Tally.Resolution())
		}
		if slices.Contains(voters, t.check.ID) {
			n.vote(t.check, b, set)
		}
	}
}

// vote holds an output in 16 bits against the two ways in which it can have come about: arithmetic in 16 bits on the inputs as
// stored, and float32 on inputs that were rounded on storing. Where both bounds hold, the errors decide by their pattern: the
// bound B of the way that it was is proportional to them. With errors e_i normal of deviation ρ·B_i, ρ free, the difference of
// the log-likelihoods is
//
//	n·ln(ρ_cast/ρ_half) + Σ ln(B_cast,i/B_half,i),  ρ² = Σ(e_i/B_i)²/n
func (n *numberFormats) vote(ch *stage.Check, b *dump.Batch, set *convention.Set) {
	out := b.Tensors[ch.Output]
	if out == nil || out.Type != format.BF16 && out.Type != format.F16 {
		return
	}
	if len(b.Mask) > manyCells {
		rows := make([]int, max(1, manyCells/16/max(b.Cols, 1)))
		for i := range rows {
			rows[i] = i
		}
		b = b.Select(rows)
		out = b.Tensors[ch.Output]
	}
	u, eta := out.Type.Unit()
	exact := stage.JudgeAs(ch, b, set, stage.Arithmetic{Unit: tol.U32})
	if exact.Verdict != check.Fail { // rounding the output alone is enough: both ways give it
		return
	}
	half := stage.JudgeAs(ch, b, set, stage.Arithmetic{Unit: u})
	cast := stage.JudgeAs(ch, b, set, stage.Arithmetic{Unit: tol.U32, Casts: true})
	switch {
	case half.Verdict == check.Fail && cast.Verdict == check.Fail:
		return // wrong in another way
	case half.Verdict == check.Fail:
		n.evidence[ch.ID] -= certain
		return
	case cast.Verdict == check.Fail:
		n.evidence[ch.ID] += certain
		return
	}
	var count, squaresHalf, squaresCast, logs float64
	for i, want := range half.Pred.Want {
		if half.Pred.Judge != nil && !half.Pred.Judge[i] || len(half.Pred.Want) == len(b.Mask) && !b.Mask[i] {
			continue
		}
		e := math.Abs(half.Got[i] - want)
		bh := half.Pred.Bound[i] + tol.Storage(want, u, eta)
		bc := cast.Pred.Bound[i] + tol.Storage(want, u, eta)
		if !(bh > 0 && bc > 0 && e < math.Inf(1) && bh < math.Inf(1) && bc < math.Inf(1)) {
			continue
		}
		count++
		squaresHalf += float64(e / bh * e / bh)
		squaresCast += float64(e / bc * e / bc)
		logs += math.Log(bc / bh)
	}
	if count >= fewValues && squaresHalf > 0 {
		n.evidence[ch.ID] += float64(count/2*math.Log(squaresCast/squaresHalf)) + logs
	}
}

// recognised returns the unit of the grid on which the elements of a tensor lie that are somebody's, 0 where they are too few
// to tell.
func recognised(b *dump.Batch, t *dump.Tensor) float64 {
	var x []float64
	different := map[float64]bool{}
	masked := t.Layout == dump.PerToken && t.Width <= 1 && len(t.Data) == len(b.Mask)
	for i, v := range t.Data {
		if masked && !b.Mask[i] || v == 0 {
			continue
		}
		x = append(x, v)
		if len(different) < fewValues {
			different[math.Abs(v)] = true
		}
	}
	if len(different) < fewValues {
		return 0
	}
	return stage.Grid(x)
}

// inFloat32 returns b as if its numbers had been stored and computed in float32.
func inFloat32(b *dump.Batch) *dump.Batch {
	c := *b
	c.Meta.ComputeDType, c.Meta.Lossy = "float32", nil
	c.Tensors = maps.Clone(b.Tensors)
	for name, t := range b.Tensors {
		if t.Type == format.BF16 || t.Type == format.F16 || t.Casts {
			u := *t
			u.Type, u.Casts = format.F32, false
			c.Tensors[name] = &u
		}
	}
	return &c
}

var formatNames = map[format.DType]string{format.F64: "float64", format.F32: "float32", format.F16: "float16", format.BF16: "bfloat16"}

// formatLines says which formats 16-bit numbers are in, what they were computed in, and which checks lost their power to it.
// It is empty for a run without such numbers.
func (s *session) formatLines() []string {
	n := &s.formats
	half := map[string]bool{} // names of 16-bit formats
	var lines, stored []string
	byType := map[string][]string{}
	for name, d := range n.stored {
		kind := formatNames[d]
		if g := n.grid[name]; g > tol.U32 && d != format.BF16 && d != format.F16 {
			kind += " on the grid of " + stage.Arithmetic{Unit: g}.String()
			half[stage.Arithmetic{Unit: g}.String()] = true
		}
		if d == format.BF16 || d == format.F16 {
			half[kind] = true
		}
		byType[kind] = append(byType[kind], name)
	}
	for _, kind := range slices.Sorted(maps.Keys(byType)) {
		slices.Sort(byType[kind])
		stored = append(stored, kind+": "+strings.Join(byType[kind], ", "))
	}
	if u, _ := stage.UnitOf(n.declared); u > tol.U32 {
		half[stage.Arithmetic{Unit: u}.String()] = true
	}
	if len(half) == 0 {
		if u, ok := stage.UnitOf(n.model); ok && u > tol.U32 && len(n.grid) > 0 {
			lines = append(lines, fmt.Sprintf("arithmetic: the model is declared as %s, and no dumped tensor is on that grid: log-probs and losses were computed in float32", stage.Arithmetic{Unit: u}))
		}
		return lines
	}
	lines = append(lines, "number formats: "+strings.Join(stored, "; "))
	lines = append(lines, "arithmetic: "+n.arithmetic(strings.Join(slices.Sorted(maps.Keys(half)), ", ")))
	if lost := s.lostPower(); len(lost) > 0 {
		lines = append(lines, "power lost to 16 bits, as the smallest relative fault that is seen (in float32): "+strings.Join(lost, ", "))
	}
	return lines
}

// arithmetic says what was declared of the arithmetic, and what the numbers say.
func (n *numberFormats) arithmetic(half string) string {
	var parts []string
	if n.declared != "" {
		parts = append(parts, "compute_dtype declares "+n.declared)
	}
	if len(n.lossy) > 0 {
		parts = append(parts, "lossy declares that the hook cast down "+strings.Join(n.lossy, ", "))
	}
	if len(parts) == 0 {
		parts = append(parts, "nothing is declared")
	}
	var total float64
	from := ""
	for _, id := range voters {
		if e := n.evidence[id]; math.Abs(e) > telling && !(e > 0 && id == "token_loss/policy") {
			total, from = e, id
			break
		}
	}
	var onGrid []string
	for name, d := range n.stored {
		if g := n.grid[name]; g > tol.U32 && (d == format.F32 || d == format.F64) {
			onGrid = append(onGrid, name)
		}
	}
	slices.Sort(onGrid)
	switch {
	case total < 0:
		parts = append(parts, fmt.Sprintf("recognised by the errors of %s: computed in float32, inputs rounded to %s on storing, that is, cast down by the hook", from, half))
	case total > 0:
		parts = append(parts, fmt.Sprintf("recognised by the errors of %s: computed in %s", from, half))
	case n.loggedOnGrid():
		parts = append(parts, fmt.Sprintf("recognised: computed in %s, since the logged losses lie on that grid", half))
	case len(onGrid) > 0:
		parts = append(parts, fmt.Sprintf("recognised: %s were computed in %s and stored in more bits", strings.Join(onGrid, ", "), half))
	default:
		parts = append(parts, "whether the trainer computed in "+half+" or the hook cast down cannot be told from these tensors")
	}
	return strings.Join(parts, "; ")
}

// loggedOnGrid reports whether three different logged losses or more, and all of them, have no more bits than bfloat16. By
// chance a float32 has so few once in 65,536 times.
func (n *numberFormats) loggedOnGrid() bool {
	different := map[float64]bool{}
	for _, x := range n.logged {
		if math.Float64bits(x)&(1<<45-1) != 0 {
			return false
		}
		if math.Float64bits(x)&(1<<52-1) != 0 {
			different[x] = true
		}
	}
	return len(different) >= 3
}

// lostPower lists the checks that see at least ten times less than they would in float32.
func (s *session) lostPower() []string {
	var lost []string
	for _, t := range s.tracks {
		fine, looked := s.formats.float32[t.check.ID]
		if !looked || t.silent || !t.seen || t.judged == 0 {
			continue
		}
		now := t.resolution
		if t.why.coarse != nil {
			now = t.why.coarse.Tally.Resolution()
		}
		if !(now > 10*fine) {
			continue
		}
		text := fmt.Sprintf("%s %.1g (%.1g)", t.check.ID, now, fine)
		if len(t.undecided) > 0 && t.passed < t.judged {
			text += " UNDETERMINED"
		}
		lost = append(lost, text)
	}
	return lost
}
