package stage

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/reference/rl"
	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

func whitenRate(o rl.WhitenOptions) func(float64) float64 {
	switch o.EpsPlace {
	case rl.FloorVar:
		return func(v float64) float64 { return 1 / math.Sqrt(max(v, o.Eps)) }
	case rl.AddStd:
		return standard(o.Eps)
	case rl.NoStd:
		return func(float64) float64 { return 1 }
	}
	return func(v float64) float64 { return 1 / math.Sqrt(v+o.Eps) }
}

// whitensRows reports whether one advantage per response is whitened before it is spread over the tokens: its whitening has no
// mask, and that of the batch's own baseline knows of none either.
func (c *Case) whitensRows() bool {
	switch c.Set.Value("whiten.mask").Kind() {
	case convention.NotApplicable:
		return c.inapplicable("whiten.scope", "none") != "none"
	case convention.Unknown:
		return c.Enum("adv.kind") == "batch_baseline"
	}
	return false
}

// whitenOptions returns how advantages of tokens are whitened, and over which cells.
func (c *Case) whitenOptions() (o rl.WhitenOptions, mask rl.WhitenMask) {
	if o = c.rowWhitening(); o.Scope != rl.ScopeNone {
		mask, _ = rl.ParseWhitenMask(c.Enum("whiten.mask"))
	}
	return o, mask
}

// rowWhitening returns how advantages of rows are whitened. The rule for one cell is read where it applies.
func (c *Case) rowWhitening() (o rl.WhitenOptions) {
	o.Scope, _ = rl.ParseScope(c.inapplicable("whiten.scope", "none"))
	if o.Scope == rl.ScopeNone {
		return o
	}
	o.Shift, _ = rl.ParseShiftMean(c.Enum("whiten.shift_mean"))
	c.whitenMoments(&o)
	return o
}

func (c *Case) whiteningOf(rows bool) (o rl.WhitenOptions, mask rl.WhitenMask) {
	if rows {
		return c.rowWhitening(), mask
	}
	return c.whitenOptions()
}

// whitenMoments reads what the moments and ε of advantages and of token rewards have in common.
func (c *Case) whitenMoments(o *rl.WhitenOptions) {
	if d := c.Num("whiten.ddof"); d == 1 {
		o.Var.DDof = 1
	}
	o.EpsPlace, _ = rl.ParseEpsPlace(c.Enum("whiten.eps_place"))
	o.Eps = max(c.Default("whiten.eps", 1e-8), 0)
	o.ConstantZero = c.BoolOr("whiten.constant_zero", false)
	o.Var.Mean.Eps = max(c.Default("mean.eps", 0), 0)
	// NaN at a masked cell of a dump may be the hook's fill; in the mask it is found by masks/finite.
	o.Var.Mean.Outside = rl.OutsideIgnore
	o.Var.Empty = rl.EmptyZero // no cell of such a scope is judged
}

// scopes returns the runs of rows that are whitened together, white what came of it, where that tells; nil: it does not. A scope that reaches beyond what was
// dumped is noted.
func (c *Case) scopes(s rl.Scope, white []float64) [][2]int {
	b := c.B
	var runs [][2]int
	switch s {
	case rl.ScopeRow:
		for r := range b.Rows {
			runs = append(runs, [2]int{r, r + 1})
		}
	case rl.ScopeMinibatch:
		if runs = StepsOfRanks(b); !whiteTogether(b, runs, white) {
			runs = runs[:0]
			for _, f := range b.Files {
				runs = append(runs, [2]int{f.Lo, f.Hi})
			}
		}
	case rl.ScopeLocalBatch:
		c.wholeBatch()
		for i, f := range b.Files {
			if i > 0 && f.Rank == b.Files[i-1].Rank {
				runs[len(runs)-1][1] = f.Hi
			} else {
				runs = append(runs, [2]int{f.Lo, f.Hi})
			}
		}
	default:
		c.wholeBatch()
		runs = append(runs, [2]int{0, b.Rows})
	}
	return runs
}

// StepsOfRanks are the runs of rows that a rank adds up to one step.
func StepsOfRanks(b *dump.Batch) (runs [][2]int) {
	for i, f := range b.Files {
		if i > 0 && f.Rank == b.Files[i-1].Rank && f.Step == b.Files[i-1].Step {
			runs[len(runs)-1][1] = f.Hi
		} else {
			runs = append(runs, [2]int{f.Lo, f.Hi})
		}
	}
	return runs
}

// whiteTogether reports whether the numbers x of every run of rows have the mean 0 and not those of every file: a mini-batch that was whitened before it
// was cut into micro-batches.
func whiteTogether(b *dump.Batch, runs [][2]int, x []float64) bool {
	if x == nil || len(runs) == len(b.Files) {
		return false
	}
	near := max(1e-5, Grid(x)) // of their size, and of what their storage rounds
	white := func(lo, hi int, times float64) bool {
		var sum, square, n float64
		for i := range b.TokensIn(lo, hi) {
			sum, square, n = sum+x[i], square+float64(x[i]*x[i]), n+1
		}
		return n == 0 || math.Abs(sum/n) <= times*near*math.Sqrt(square/n)
	}
	return !slices.ContainsFunc(runs, func(r [2]int) bool { return !white(r[0], r[1], 1) }) &&
		slices.ContainsFunc(b.Files, func(f dump.FileInfo) bool { return !white(f.Lo, f.Hi, 4) })
}

// wholeBatch notes what keeps the files of a step from being all that was sampled together.
func (c *Case) wholeBatch() {
	if len(c.B.Missing) > 0 {
		note(&c.Absent, "all files of the step, over which the statistics are taken")
	}
	if Updates(c.Set) > 1 {
		note(&c.Absent, otherSteps)
	}
}

// realCells returns the cells that the files have: a narrow file of a wide batch was filled up.
func (c *Case) realCells() []bool {
	b := c.B
	real := make([]bool, b.Rows*b.Cols)
	for r := range b.Rows {
		for t := range c.width(r) {
			real[r*b.Cols+t] = true
		}
	}
	return real
}

// width returns the number of columns that the file of a row gives it.
func (c *Case) width(row int) int {
	o := c.B.Origin[row]
	if o.Cols > 0 {
		return min(o.Cols, c.B.Cols)
	}
	return min(c.B.Files[o.File].Cols, c.B.Cols)
}

// whitened whitens x, rows×cols, over the scopes; cols is 1 for numbers per row. count marks the cells that the moments are
// taken of, nil all; got is the result as dumped, nil if it was not. The result is nil, and the reason is noted, where the framework
// raises an exception.
func (c *Case) whitened(x Input, cols int, count []bool, o rl.WhitenOptions, scopes [][2]int, got []float64) (Input, []moments) {
	y := Input{X: make([]float64, len(x.X)), Err: make([]float64, len(x.X))}
	var all []moments
	u := c.Unit + tol.U64
	rate := whitenRate(o)
	var cells, errs []float64
	y.Half = x.Half
	one := o
	one.Scope = rl.ScopeGlobal
	for _, s := range scopes {
		lo, hi := s[0]*cols, s[1]*cols
		var mask []bool
		if count != nil {
			mask = count[lo:hi]
		}
		cells, errs = cells[:0], errs[:0]
		for i := lo; i < hi; i++ {
			if count == nil || count[i] {
				cells = append(cells, x.X[i])
				if x.Err != nil {
					errs = append(errs, x.Err[i])
				}
			}
		}
		if x.Err == nil {
			errs = nil
		}
		if m, ok := c.whitenedAs16(x, count, o, lo, hi, y, got); ok {
			all = append(all, m)
			continue
		}
		if len(cells) == 1 {
			one.Var.Single, _ = rl.ParseSingleRule(c.inapplicable("whiten.single", "nan"))
			if !c.OK() {
				return Input{}, nil
			}
		}
		if _, err := rl.Whiten(y.X[lo:hi], x.X[lo:hi], mask, s[1]-s[0], cols, one); err != nil {
			what := "an advantage"
			if errors.Is(err, rl.ErrSingle) {
				what = "an advantage (whiten.single error: whitening one token raises an exception)"
			}
			note(&c.Absent, what)
			return Input{}, nil
		}
		m := momentsOf(cells, errs, o.Var.DDof, o.Var.Mean.Eps, c.Unit)
		if m.n == 1 && one.Var.Single == rl.SingleZero {
			m.v, m.eV = 0, 0
		}
		all = append(all, m)
		zero := errs == nil && (m.n == 1 && one.Var.Single == rl.SingleZero || o.ConstantZero && equal(cells))
		r, eR := m.rate(rate, c.Unit)
		undecided := math.IsInf(rate(max(m.v-m.eV, 0)), 1) // nothing is added to a variance that may be 0
		for i := lo; i < hi; i++ {
			v, e := x.X[i], x.E(i)
			var b float64
			switch {
			case undecided:
				b = math.Inf(1)
			case o.Shift == rl.ShiftFalsePlain:
				b = scaled(v, e, r, eR, c.Unit)
			case !zero:
				d := v - m.mean
				b = scaled(d, e+m.eMean+u*math.Abs(d), r, eR, c.Unit)
			}
			if o.Shift == rl.ShiftFalseAddBack {
				b += m.eMean + u*math.Abs(y.X[i])
			}
			y.Err[i] = b
		}
	}
	return y, all
}

// equal reports whether all of x are the same finite number.
func equal(x []float64) bool {
	for _, v := range x {
		if v != x[0] || math.IsInf(v, 0) {
			return false
		}
	}
	return len(x) > 0
}

// whitenAdvantages whitens advantages, per token or per row, as the options say; what it is given comes back where they are not
// whitened. A number per row counts where the row has a token.
func (c *Case) whitenAdvantages(x Input, perRow bool) (Input, []Term) {
	o, kind := c.whiteningOf(perRow)
	if !c.OK() || o.Scope == rl.ScopeNone {
		return x, nil
	}
	b := c.B
	cols, count := b.Cols, []bool(nil)
	switch {
	case perRow:
		cols, count = 1, c.rowsWithTokens()
	case kind == rl.WhitenAll:
		count = c.realCells()
	default:
		count = kind.Of(b.Mask, b.Rows, b.Cols)
	}
	runs := c.scopes(o.Scope, b.Token("advantages"))
	if !c.OK() {
		return Input{}, nil
	}
	y, all := c.whitened(x, cols, count, o, runs, b.Token("advantages"))
	if len(all) != 1 {
		return y, []Term{{"whitened sets", float64(len(all))}}
	}
	return y, []Term{{"whitening mean", all[0].mean}, {"whitening std", math.Sqrt(all[0].v)}}
}

// firstTokens returns x at the first token of every row, 0 where there is none.
func firstTokens(b *dump.Batch, x []float64) []float64 {
	y := make([]float64, b.Rows)
	for i := len(b.Mask) - 1; i >= 0; i-- {
		if b.Mask[i] {
			y[i/b.Cols] = x[i]
		}
	}
	return y
}

func (c *Case) rowsWithTokens() []bool {
	b := c.B
	has := make([]bool, b.Rows)
	for i := range b.Tokens() {
		has[i/b.Cols] = true
	}
	return has
}

// momentsCheck asserts that whitened advantages have mean 0 and variance 1 over what they were whitened over. It needs no
// inputs, and so it speaks where the advantages themselves cannot be recomputed.
func momentsCheck() *Check {
	return &Check{
		ID: "advantage/moments", Stage: convention.Advantage,
		Title:   "mean and variance of whitened advantages",
		Formula: "mean A = 0 and var A = v/(v + whiten.eps) ≤ 1 over whiten.mask and whiten.scope, with whiten.ddof",
		Source:  "V15; identity of whitening",
		Fix:     "find what is whitened with other tokens than it is used with: another mask, another set of rows, or not at all",
		Applies: func(c *Case) bool {
			s := c.Set.Value("whiten.scope")
			open := slices.ContainsFunc([]string{"whiten.shift_mean", "whiten.ddof", "whiten.eps_place"}, func(name string) bool {
				return c.Set.Value(name).Kind() == convention.Unknown // the advantages themselves tell, where they can be predicted
			})
			return c.Has("advantages") && s.Kind() == convention.Enum && s.Text() != "none" && !open
		},
		Assert: assertMoments,
	}
}

func assertMoments(c *Case) *Assertion {
	perRow, ok := c.layout("advantages")
	if !ok {
		return nil
	}
	b := c.B
	t := b.Tensors["advantages"]
	x, cols, count := t.Data, b.Cols, []bool(nil)
	storage, _ := t.Type.Unit() // moves every number by this much of itself
	if !perRow && c.whitensRows() {
		perRow, x = true, firstTokens(b, x)
	}
	o, kind := c.whiteningOf(perRow)
	if !c.OK() || o.Shift != rl.ShiftTrue {
		return nil
	}
	switch {
	case perRow:
		cols, count = 1, c.rowsWithTokens()
	case kind == rl.WhitenResponse:
		count = b.Mask
	default:
		// What masked cells hold is not to be relied on.
		return &Assertion{Note: "whiten.mask takes cells that are not compared"}
	}
	runs := c.scopes(o.Scope, b.Token("advantages"))
	if !c.OK() {
		return nil
	}
	a := &Assertion{Warning: true}
	// Half of the digits of the format: what is sought are other sets of tokens, and roundings of the raw advantages, of
	// which the dump may hold nothing, are not.
	limit := math.Sqrt(max(c.Unit, tol.U32))
	for _, s := range runs {
		var cells, errs []float64
		for i := s[0] * cols; i < s[1]*cols; i++ {
			if count[i] {
				cells, errs = append(cells, x[i]), append(errs, storage*math.Abs(x[i]))
			}
		}
		if len(cells) < 2 {
			continue
		}
		m := momentsOf(cells, errs, o.Var.DDof, 0, c.Unit)
		if m.v < 0.5 {
			continue // equal numbers: a residue of rounding over ε, of any mean
		}
		a.Checked++
		bound := limit + m.eMean
		if !(math.Abs(m.mean) <= bound) {
			a.Violations = append(a.Violations, Violation{
				Reason: fmt.Sprintf("mean of %d whitened advantages, where 0 ± %.2g is possible", m.n, bound), Row: s[0], Col: -1, Got: m.mean})
		}
		if bound = 1 + limit + m.eV; !(m.v <= bound) {
			a.Violations = append(a.Violations, Violation{
				Reason: fmt.Sprintf("variance of %d whitened advantages, where at most 1 is possible", m.n), Row: s[0], Col: -1, Got: m.v})
		}
	}
	return a
}

// layout reports whether the output is one number per row, as dumped; one that was not dumped is per token. It is not ok,
// which is noted, where the dump has some other shape.
func (c *Case) layout(output string) (perRow, ok bool) {
	t := c.B.Tensors[output]
	if t == nil {
		return false, true
	}
	switch len(t.Data) {
	case c.B.Rows * c.B.Cols:
		if c.B.Token(output) != nil {
			return false, true
		}
		fallthrough
	case c.B.Rows:
		if c.B.Row(output) != nil && len(t.Data) == c.B.Rows {
			return true, true
		}
	}
	note(&c.Absent, output+" of one number per row or per token")
	return false, false
}
