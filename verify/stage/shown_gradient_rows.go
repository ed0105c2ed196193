package stage

import (
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

// rowGradient is a row whose tokens have one gradient g = −w·A·s, or 0 where a bound stops them, with s one ratio of the row.
type rowGradient struct {
	adv, g    float64 // g of the tokens that have one; 0: none has
	n         float64 // tokens
	mean, sum float64 // of their log-ratios
	kept, cut []float64
	file      int
}

// RowSurrogate collects the rows of batches whose tokens' gradients show a surrogate with one ratio for a row: GSPO's (Zheng et al. 2025; TRL 1.16,
// importance_sampling_level sequence), which bounds stop as a whole, and GMPO's (verl 0.9.1, compute_policy_loss_geo_mean), which stop tokens.
type RowSurrogate struct {
	rows    []rowGradient
	loss    []float64 // of the files
	telling int       // rows whose tokens have ratios that would make gradients of their own
	other   bool      // some row has tokens of two gradients other than 0, or advantages of its own for each
}

// Add takes the rows of a batch.
func (s *RowSurrogate) Add(b *dump.Batch) {
	const apart, near = 32, 1e-5
	lp, old, g := b.Token("logp_new"), b.Token("logp_old"), b.Token("dlogp")
	adv := NewCase(b, &convention.Set{}, 0).Optional("advantages").X
	if lp == nil || old == nil || g == nil || adv == nil || b.Token("token_loss") != nil {
		s.other = true
	}
	if s.other {
		return
	}
	loss := b.PerFile("pg_loss")
	if loss == nil {
		loss = b.PerFile("loss")
	}
	if len(loss) != len(b.Files) {
		loss = slices.Repeat([]float64{math.NaN()}, len(b.Files))
	}
	base := len(s.loss)
	s.loss = append(s.loss, loss...)
	same := near + 4*max(Grid(g), tol.U32)
	for r := range b.Rows {
		row := rowGradient{adv: math.NaN(), file: base + b.File(r)}
		for i := range b.TokensOf(r) {
			if math.IsNaN(row.adv) {
				row.adv = adv[i]
			}
			d := lp[i] - old[i]
			row.n++
			row.sum += d
			switch {
			case adv[i] != row.adv || math.IsNaN(d+g[i]) || math.IsInf(d, 0):
				s.other = true
				return
			case g[i] == 0:
				row.cut = append(row.cut, d)
				continue
			case row.g == 0:
				row.g = g[i]
			case math.Abs(g[i]-row.g) > same*math.Abs(row.g):
				s.other = true
				return
			}
			row.kept = append(row.kept, d)
		}
		if row.n == 0 || row.adv == 0 {
			continue
		}
		row.mean = row.sum / row.n
		if len(row.kept) > 1 && slices.Max(row.kept)-slices.Min(row.kept) > apart*same {
			s.telling++
		}
		s.rows = append(s.rows, row)
	}
}

// forms are the surrogates that the rows show, the likeliest first.
func (s *RowSurrogate) forms() (lists [][]assign) {
	if s.other || s.telling < 2 {
		return nil
	}
	if slices.ContainsFunc(s.rows, func(x rowGradient) bool { return len(x.kept) > 0 && len(x.cut) > 0 }) {
		return [][]assign{append([]assign{word("loss.kind", "gmpo")}, geometricClips(s.rows)...)}
	}
	for _, level := range []string{"seq_mean", "seq_sum"} {
		for _, clips := range s.clips(level) {
			lists = append(lists, append([]assign{word("ratio.level", level)}, clips...))
		}
	}
	return lists
}

// Changes are the options of the surrogates that all rows together show, the likeliest first, where set leaves them open. They are proposed only.
func (s *RowSurrogate) Changes(set *convention.Set) [][]Change { return openOf(s.forms(), set) }

// rowForms are the surrogates that the rows of one batch show.
func rowForms(b *dump.Batch) [][]assign {
	var s RowSurrogate
	s.Add(b)
	return s.forms()
}

// clipSide is where a bound lies: above the ratios that are kept and below those that are cut, or the other way round.
type clipSide struct{ kept, cut float64 }

// number returns what is likely for a bound between them.
func (s clipSide) number(option string) []assign {
	if lo, hi := min(s.kept, s.cut), max(s.kept, s.cut); lo < hi && !math.IsInf(hi, 0) && !math.IsInf(lo, 0) {
		return []assign{amount(option, shortest(lo, hi, (lo+hi)/2))}
	}
	return nil
}

// geometricClips proposes the bounds of GMPO, which stop a token of log-ratio d with A > 0 where d > high, and with A < 0 where d < −low.
func geometricClips(rows []rowGradient) (list []assign) {
	high, low := clipSide{0, math.Inf(1)}, clipSide{0, math.Inf(1)}
	for _, row := range rows {
		s, sign := &high, 1.0
		if row.adv < 0 {
			s, sign = &low, -1
		}
		for _, d := range row.kept {
			s.kept = max(s.kept, sign*d)
		}
		for _, d := range row.cut {
			s.cut = min(s.cut, sign*d)
		}
	}
	if low.kept < low.cut {
		list = append(list, low.number("clip.low")...)
	}
	if high.kept < high.cut {
		list = append(list, high.number("clip.high")...)
	}
	return list
}

// clips proposes the bounds that stop rows of one level of ratio: those between the rows that are kept and those that are cut, of these the
// numbers under which the policy losses of the files are nearest to what was dumped.
func (s *RowSurrogate) clips(level string) [][]assign {
	high, low := clipSide{0, math.Inf(1)}, clipSide{0, math.Inf(1)}
	cells := make([]clippedRow, 0, len(s.rows))
	for _, row := range s.rows {
		d := row.mean
		if level == "seq_sum" {
			d = row.sum
		}
		ratio := math.Exp(d)
		x := clippedRow{adv: row.adv, rho: ratio, n: row.n, file: row.file, w: math.NaN()}
		of, by := &high, ratio-1
		if row.adv < 0 {
			of, by = &low, 1-ratio
		}
		if row.g != 0 {
			of.kept = max(of.kept, by)
			x.w = -row.g / (row.adv * ratio)
		} else {
			of.cut = min(of.cut, by)
		}
		cells = append(cells, x)
	}
	if !(high.kept < high.cut) || !(low.kept < low.cut) {
		return nil // other bounds, or another ratio
	}
	lists := nearestBounds(s.loss, cells, low, high)
	return append(lists, append(low.number("clip.low"), high.number("clip.high")...))
}

// clippedRow is a row with the weight w of its tokens in the loss, NaN where a bound stops it.
type clippedRow struct {
	adv, rho, n, w float64
	file           int
}

// nearestBounds returns the pairs of bounds of at most two digits under which −Σ n·w·min(s·A, clip(s)·A) is nearest to the policy losses of the files,
// those of the fewest digits first, two at most.
func nearestBounds(loss []float64, rows []clippedRow, low, high clipSide) (lists [][]assign) {
	const most, exact = 2, 1e-5
	if math.IsInf(low.cut, 0) && math.IsInf(high.cut, 0) {
		return nil
	}
	var plain, perToken []float64
	for _, x := range rows {
		if !math.IsNaN(x.w) {
			plain, perToken = append(plain, x.w), append(perToken, x.w*x.n)
		}
	}
	w, byRow, shared := weightForm(plain, perToken)
	rest, size := slices.Clone(loss), make([]float64, len(loss)) // what the rows that are cut leave to explain
	up, down := make([]float64, len(loss)), make([]float64, len(loss))
	for _, x := range rows {
		of := x.w
		switch {
		case !math.IsNaN(of):
			rest[x.file] += of * x.n * x.adv * x.rho
			size[x.file] += math.Abs(of * x.n * x.adv * x.rho)
			continue
		case shared:
			of = byRow / x.n
		default:
			of = w
		}
		size[x.file] += math.Abs(of * x.n * x.adv)
		if x.adv > 0 {
			up[x.file] += of * x.n * x.adv
		} else {
			down[x.file] += of * x.n * x.adv
		}
	}
	numbers := func(s clipSide) []float64 {
		if math.IsInf(s.cut, 0) {
			return []float64{math.NaN()}
		}
		return shortDecimals(s.kept, s.cut)
	}
	for _, l := range numbers(low) {
		for _, h := range numbers(high) {
			fits := true
			for f := range rest {
				left := rest[f]
				if up[f] != 0 {
					left += up[f] * (1 + h)
				}
				if down[f] != 0 {
					left += down[f] * (1 - l)
				}
				fits = fits && math.Abs(left) <= exact*size[f]
			}
			if fits && len(lists) < most {
				var list []assign
				if !math.IsNaN(l) {
					list = append(list, amount("clip.low", l))
				}
				if !math.IsNaN(h) {
					list = append(list, amount("clip.high", h))
				}
				lists = append(lists, list)
			}
		}
	}
	return lists
}

// shortDecimals returns the numbers of at most two digits in [lo, hi] with hi above 0, those of one digit first.
func shortDecimals(lo, hi float64) (list []float64) {
	lo = max(lo, hi/100)
	for digits := 1; digits <= 2; digits++ {
		for e := math.Floor(math.Log10(lo)) - 1; e <= math.Log10(hi); e++ {
			unit := math.Pow(10, e-float64(digits-1))
			for k := math.Ceil(lo / unit); k*unit <= hi && k < math.Pow(10, float64(digits)); k++ {
				if x := written(k*unit, 1e-9); x >= lo && x <= hi && !slices.Contains(list, x) {
					list = append(list, x)
				}
			}
		}
	}
	return list
}
