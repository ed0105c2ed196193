package stage

import (
	"math"

	"plumbline/reference/rl"
	"plumbline/verify/tol"
)

// rowWay is what of a mean over rows is rounded where the terms have a 16-bit type: the sum of a row, whose terms are accumulated in float32;
// its quotient, where the length is an integer; and the sum over the rows and its quotient, where those have the type still. OpenRLHF 0.11.2
// and verl 0.9.1 divide by a length with 1e-8 added, which is float32, and so is what follows.
//
// A mean over tokens is a sum that is rounded, and a quotient that is or not; a count that is an integer is cast to the type before.
type rowWay struct{ quotient, total bool }

var (
	rowWays   = []rowWay{{}, {quotient: true}, {quotient: true, total: true}}
	tokenWays = []rowWay{{}, {total: true}, {quotient: true, total: true}}
)

// promotedMeans returns means over tokens or rows in the way that gives all of the numbers dumped for the files, got, within what is open; ok is
// false where none does.
func (red *reduction) promotedMeans(c *Case, x Input, got []float64) (s sums, ok bool) {
	if x.Half == 0 || len(got) != len(c.B.Files) {
		return s, false
	}
	file, ways := red.promotedFile, rowWays
	switch red.kind() {
	case rl.AggToken:
		file, ways = red.promotedTokens, tokenWays
	case rl.AggSeqMeanTokenMean, rl.AggSeqMeanTokenSum:
	default:
		return s, false
	}
	for _, way := range ways {
		s, ok = c.newSums(), true
		for f := range c.B.Files {
			s.x[f], s.size[f], s.err[f] = file(c, x, f, way)
			ok = ok && math.Abs(got[f]-s.x[f]) <= s.err[f]
		}
		if ok {
			return s, true
		}
	}
	return s, false
}

// promotedFile returns the mean of file f, the sum of the magnitudes of its terms, and how far it can be off: by the roundings that are open,
// and by those of float32 of [reduction.apply].
func (red *reduction) promotedFile(c *Case, x Input, f int, way rowWay) (mean, size, bound float64) {
	b, u, o := c.B, x.Half, red.o[f]
	file := b.Files[f]
	lo, hi := file.Lo*b.Cols, file.Hi*b.Cols
	part := x.X[lo:hi]
	whole, w, err := rl.Aggregate(nil, part, red.mask[lo:hi], file.Hi-file.Lo, b.Cols, o)
	if err != nil || math.IsNaN(whole) {
		return math.NaN(), 0, 0
	}
	for r := range file.Hi - file.Lo {
		var sum, terms, e, weight, n float64
		var cells []float64
		for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
			if w[i] == 0 {
				continue
			}
			sum += part[i]
			terms += math.Abs(part[i])
			e += x.E(lo + i)
			cells = append(cells, part[i])
			weight = w[i]
			n++
		}
		size += math.Abs(weight) * terms
		exact := exactSum(cells, tol.U32)
		if !exact {
			e += foldError(int(n), tol.U32) * terms
		}
		sum, e = step16(sum, e, u, exact)
		if way.quotient && o.Kind == rl.AggSeqMeanTokenMean && n > 0 {
			sum, e = step16(sum/n, e/n, u, false)
			sum, e = sum*n, e*n
		}
		mean += weight * sum
		bound += math.Abs(weight) * e
	}
	bound += (foldError(file.Hi-file.Lo, c.Unit)+4*c.Unit)*size + red.slack*math.Abs(mean)
	if way.total {
		factor := max(o.Scale, 0) / max(o.Steps, 1)
		if factor == 0 {
			factor = 1 / max(o.Steps, 1)
		}
		rows := o.Rows
		if o.Denominator == rl.AggMicro {
			rows = math.Round(rowsIn(w, b.Cols))
		}
		total, e := step16(mean*rows/factor, bound*rows/factor, u, false)
		total, e = step16(total/rows, e/rows, u, false)
		mean, bound = total*factor, e*factor
	}
	return mean, size, bound
}

// promotedTokens is promotedFile for a mean over tokens.
func (red *reduction) promotedTokens(c *Case, x Input, f int, way rowWay) (mean, size, bound float64) {
	b, u, o := c.B, x.Half, red.o[f]
	n := o.Tokens
	if o.Denominator == rl.AggMicro {
		n = red.tokens[f]
	}
	if !(n > 0) {
		return math.NaN(), 0, 0
	}
	var cells []float64
	for i := b.Files[f].Lo * b.Cols; i < b.Files[f].Hi*b.Cols; i++ {
		if red.mask[i] {
			cells = append(cells, x.X[i])
			mean += x.X[i]
			size += math.Abs(x.X[i])
			bound += x.E(i)
		}
	}
	exact := exactSum(cells, tol.U32)
	if !exact {
		bound += foldError(len(cells), tol.U32) * size
	}
	mean, bound = step16(mean, bound, u, exact)
	if way.quotient {
		n, _ = rounded(n, u)
	}
	mean, bound, size = mean/n, bound/n, size/n
	if way.total {
		mean, bound = step16(mean, bound, u, false)
	}
	if o.Scale != 0 {
		mean, bound, size = mean*o.Scale, bound*o.Scale, size*o.Scale
	}
	if steps := o.Steps; steps > 1 {
		mean, bound, size = mean/steps, bound/steps, size/steps
		if way.total {
			mean, bound = step16(mean, bound, u, false)
		}
	}
	return mean, size, bound + 4*c.Unit*math.Abs(mean) + red.slack*math.Abs(mean)
}

// rowsIn counts the rows that have a cell with a weight.
func rowsIn(w []float64, cols int) (n float64) {
	for r := range len(w) / max(cols, 1) {
		for _, x := range w[r*cols : (r+1)*cols] {
			if x != 0 {
				n++
				break
			}
		}
	}
	return n
}
