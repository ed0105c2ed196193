package stage

import (
	"cmp"
	"math"
	"slices"
	"strconv"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
)

// valueCell is a token of a value loss max((v − R)², (clip(v, V ± c) − R)²) with its weight w, which a gradient 2w·(v − R) gives.
type valueCell struct {
	v, old, target, w float64
	file              int
	tokens            float64 // of its row
}

// valueForm is a way to clip a value loss: the term of a cell under a clip of c, without its weight, and whether a gradient that is not 0 says that a value
// has moved by no more than c, where d = v − R.
type valueForm struct {
	square func(x valueCell, c float64) float64
	within func(moved, d float64) bool
}

// squares are those of the value as it is and as it is held.
func (x valueCell) squares(lo, hi float64) (plain, held float64) {
	d, e := x.v-x.target, max(min(x.v, x.old+hi), x.old-lo)-x.target
	return d * d, e * e
}

// valueForms are that of PPO, the larger of both squares, and slips of it: the smaller one, the held one alone, and a value that is held on one side only.
var valueForms = []valueForm{
	{func(x valueCell, c float64) float64 { return max(x.squares(c, c)) }, func(moved, d float64) bool { return moved*d < 0 }},
	{func(x valueCell, c float64) float64 { return min(x.squares(c, c)) }, func(moved, d float64) bool { return moved*d > 0 && (d-moved)*d > 0 }},
	{func(x valueCell, c float64) float64 { _, held := x.squares(c, c); return held }, func(float64, float64) bool { return true }},
	{func(x valueCell, c float64) float64 { return max(x.squares(math.Inf(1), c)) }, func(moved, d float64) bool { return moved > 0 && d < 0 }},
	{func(x valueCell, c float64) float64 { return max(x.squares(c, math.Inf(1))) }, func(moved, d float64) bool { return moved < 0 && d > 0 }},
}

// ValueClipsUnder returns the clips of the value loss that slips of its formula show, as [Shown] gives that of the right one.
func ValueClipsUnder(b *dump.Batch, set *convention.Set) (shown [][]Change) {
	for _, f := range valueForms[1:] {
		shown = append(shown, openOf(valueClips(b, set, f), set)...)
	}
	return shown
}

// valueClips proposes the clip of the value loss. A gradient of 0 where v is not R lies beyond the clip; one that is not 0, of a value that moved
// towards its target and has not passed it, within. Between these the value losses tell, Σ w·max(…), up to the coefficient that their gradient
// may have.
func valueClips(b *dump.Batch, set *convention.Set, f valueForm) (lists [][]assign) {
	cells, lo, hi := valueCells(b, valueLossMask(b), f)
	if len(cells) == 0 || math.IsInf(hi, 1) || !(lo < hi) {
		return nil
	}
	best := []float64{shortest(lo, hi, (lo+hi)/2)}
	if loss := b.PerFile("value_loss"); loss != nil {
		best = append(nearestClips(cells, loss, set, f, lo, hi), best...)
	}
	for _, c := range best {
		lists = append(lists, []assign{amount("value.clip", c)})
	}
	return lists
}

// valueLossMask returns the cells of the value loss: those of the response, with the one behind it where that has a gradient, or all where others
// have one.
func valueLossMask(b *dump.Batch) []bool {
	g := b.Token("dvalues")
	c := NewCase(b, &convention.Set{}, 0)
	cells := "response"
	for i := range g {
		if g[i] == 0 || b.Mask[i] {
			continue
		}
		if i%b.Cols != c.last(i/b.Cols)+1 {
			return c.valueMask("none")
		}
		cells = "p1"
	}
	return c.valueMask(cells)
}

// valueCells returns the tokens of the value loss and the interval in which its clip lies, (…, +Inf) where no gradient is 0.
func valueCells(b *dump.Batch, mask []bool, f valueForm) (cells []valueCell, lo, hi float64) {
	v, old, target, g := b.Token("values_new"), b.Token("values"), b.Token("returns"), b.Token("dvalues")
	hi = math.Inf(1)
	if v == nil || old == nil || target == nil || g == nil {
		return nil, lo, hi
	}
	for r := range b.Rows {
		var weights []float64
		from := len(cells)
		var tokens float64
		for _, m := range mask[r*b.Cols : (r+1)*b.Cols] {
			if m {
				tokens++
			}
		}
		for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
			d := v[i] - target[i]
			moved := v[i] - old[i]
			if !mask[i] || !(math.Abs(d) > 1e-3*math.Abs(target[i])) {
				continue
			}
			cells = append(cells, valueCell{v: v[i], old: old[i], target: target[i], file: b.File(r), tokens: tokens})
			switch {
			case g[i] == 0:
				hi = min(hi, math.Abs(moved))
			case f.within(moved, d):
				lo = max(lo, math.Abs(moved))
				fallthrough
			default:
				weights = append(weights, g[i]/(2*d))
			}
		}
		w := middle(weights, 1)
		for k := from; k < len(cells); k++ {
			cells[k].w = w
		}
	}
	for from := 0; from < len(cells); { // what losses are divided by is of a file, or of all of them
		to := from
		for to < len(cells) && cells[to].file == cells[from].file {
			to++
		}
		fillWeights(cells[from:to])
		from = to
	}
	fillWeights(cells)
	return cells, lo, hi
}

// nearestClips returns the numbers of at most three digits within an interval under which the losses of the files are nearest to what was
// dumped, times 1, the declared coefficient, or one number for all files.
func nearestClips(cells []valueCell, loss []float64, set *convention.Set, f valueForm, lo, hi float64) []float64 {
	type clip struct{ c, off float64 }
	coefs := []float64{1}
	if v := set.Value("value.coef"); v.Kind() == convention.Number && v.Num() > 0 {
		coefs = append(coefs, v.Num())
	}
	var list []clip
	for _, c := range decimals(lo, hi) {
		sums := make([]float64, len(loss))
		for _, x := range cells {
			sums[x.file] += x.w * f.square(x, c)
		}
		off := math.Inf(1)
		of := func(coef float64) (most float64) {
			for i, x := range loss {
				most = max(most, math.Abs(sums[i]/coef-x)/math.Abs(x))
			}
			return most
		}
		for _, coef := range coefs {
			off = min(off, of(coef))
		}
		if len(loss) > 1 {
			off = min(off, of(sums[0]/loss[0]))
		}
		if !math.IsNaN(off) {
			list = append(list, clip{c, off})
		}
	}
	slices.SortStableFunc(list, func(a, b clip) int { return cmp.Compare(a.off, b.off) })
	var best []float64
	for _, x := range list[:min(3, len(list))] {
		best = append(best, x.c)
	}
	return best
}

// decimals returns the numbers of at most three digits in [lo, hi], or 300 of them spread over it if there are more.
func decimals(lo, hi float64) (list []float64) {
	const most = 300
	if lo <= 0 {
		lo = hi / 100
	}
	for x := lo; x <= hi*1.01 && len(list) < 100*most; {
		unit := math.Pow(10, math.Floor(math.Log10(x))-2)
		short, err := strconv.ParseFloat(strconv.FormatFloat(x, 'e', 2, 64), 64)
		if err == nil && lo <= short && short <= hi && (len(list) == 0 || short != list[len(list)-1]) {
			list = append(list, short)
		}
		x += unit
	}
	if n := len(list); n > most {
		return eachOf(most, func(i int) float64 { return list[i*(n-1)/(most-1)] })
	}
	return list
}

// weightForm returns the middle of the weights of tokens and of their products with the tokens of their rows, and whether these are the more alike:
// whether the weight of a row, and not of a token, is one number.
func weightForm(plain, perToken []float64) (w, byRow float64, shared bool) {
	w, byRow = middle(plain, 1), middle(perToken, 1)
	return w, byRow, spreadOf(perToken, byRow)/math.Abs(byRow) < spreadOf(plain, w)/math.Abs(w)
}

// fillWeights gives the rows whose gradients are all 0 a weight: that of the others where it is one number, or the one that it is for a token of
// theirs, as a mean over rows of means over tokens has it.
func fillWeights(cells []valueCell) {
	var plain, perToken []float64
	for _, x := range cells {
		if !math.IsNaN(x.w) {
			plain, perToken = append(plain, x.w), append(perToken, x.w*x.tokens)
		}
	}
	w, byToken, shared := weightForm(plain, perToken)
	for k := range cells {
		switch x := &cells[k]; {
		case !math.IsNaN(x.w):
		case shared:
			x.w = byToken / x.tokens
		default:
			x.w = w
		}
	}
}
