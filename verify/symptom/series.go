package symptom

import (
	"math"
	"slices"
	"sort"
)

// point is a value of a step, or several neighbouring ones that were joined.
type point struct {
	step, line     int64
	mean, min, max float64
	n              int64
}

// Sizes of a series: long runs are joined two by two, so that 10⁷ steps take no more room than mostPoints.
const (
	mostPoints = 4096
	mostTail   = 512
	mostSeries = 2000 // metrics of which values are kept
)

// series is what a log says of one metric.
type series struct {
	name  string
	known *Name
	what  *Quantity // nil: not in the dictionary
	level int       // 0: of a console, 1: of TensorBoard, 2: with all digits
	half  float64   // its rounding in print: the finest where numbers have the digits that they need, else the coarsest
	exact bool      // written with the digits that a number needs: 0 is 0, as a small number would have an exponent

	n      int64 // finite values
	first  point
	last   point
	low    point // the smallest and the largest value
	high   point
	points []point
	each   int64   // values that are joined in a point
	tail   []point // ring of the last
	at     int

	bad       int64 // values that are not finite
	firstBad  point
	missing   int64
	firstMiss point
	infinite  bool
	lastBad   int64 // values before the last one that is not finite
	badRun    int64 // values that are not finite at the end, and the longest such run that a finite value ended
	badGap    int64

	row    int64 // of the watch, that had a value last
	beside int64 // learning rates that had been logged in that row, where it has one

	zero, longest zeroRun
	zeros         int64
}

// zeroRun is values of exactly 0 one after another.
type zeroRun struct {
	n        int64
	from, to int64 // steps
	line     int64
}

func (s *series) add(step, line int64, v float64, missing bool, half float64, shortest, keep bool) {
	p := point{step, line, v, v, v, 1}
	switch {
	case missing:
		if s.missing++; s.missing == 1 {
			s.firstMiss = p
		}
		return
	case math.IsNaN(v) || math.IsInf(v, 0):
		if s.bad++; s.bad == 1 {
			s.firstBad, s.infinite = p, math.IsInf(v, 0)
		}
		s.zero = zeroRun{}
		s.badRun++
		s.lastBad = s.n + s.bad - 1
		return
	}
	s.badGap, s.badRun = max(s.badGap, s.badRun), 0
	s.exact = shortest && (s.exact || s.n == 0)
	switch {
	case !shortest:
		s.half = max(s.half, half)
	case s.n == 0 || half < s.half:
		s.half = min(half, 5e-5) // transformers rounds to four digits; 13 is no 12.6
	}
	if s.n++; s.n == 1 {
		s.first, s.low, s.high, s.each = p, p, p, 1
	}
	s.last = p
	if v < s.low.mean {
		s.low = p
	}
	if v > s.high.mean {
		s.high = p
	}
	if v == 0 {
		s.zeros++
		if s.zero.n++; s.zero.n == 1 {
			s.zero.from, s.zero.line = step, line
		}
		s.zero.to = step
		if s.zero.n > s.longest.n {
			s.longest = s.zero
		}
	} else {
		s.zero = zeroRun{}
	}
	if !keep {
		return
	}
	if len(s.tail) < mostTail {
		s.tail = append(s.tail, p)
	} else {
		s.tail[s.at] = p
		s.at = (s.at + 1) % mostTail
	}
	if k := len(s.points); k > 0 && s.points[k-1].n < s.each {
		s.points[k-1] = join(s.points[k-1], p)
		return
	}
	if len(s.points) == mostPoints {
		for i := range mostPoints / 2 {
			s.points[i] = join(s.points[2*i], s.points[2*i+1])
		}
		s.points = s.points[:mostPoints/2]
		s.each *= 2
	}
	s.points = append(s.points, p)
}

func join(a, b point) point {
	n := a.n + b.n
	a.mean += (b.mean - a.mean) * float64(b.n) / float64(n)
	a.min, a.max, a.n = min(a.min, b.min), max(a.max, b.max), n
	return a
}

// sparse reports whether NaN stands for steps without a value, as in a history of W&B: finite values come after it.
func (s *series) sparse() bool { return !s.infinite && s.badGap > 0 && s.badRun <= s.badGap }

// lastOf returns the last n values or fewer, in order.
func (s *series) lastOf(n int) []point {
	list := append(append([]point{}, s.tail[s.at:]...), s.tail[:s.at]...)
	return list[max(0, len(list)-n):]
}

// since returns the points of the last so many steps.
func (s *series) since(steps int64) []point {
	i := sort.Search(len(s.points), func(i int) bool { return s.points[i].step > s.last.step-steps })
	return s.points[i:]
}

// window returns the values of the last steps, or all where fewer than ten lie in them: a slope needs ten points, and a run that does not move
// as a whole does not in its end.
func (s *series) window(steps int64) []point {
	if p := s.since(steps); len(p) >= 10 {
		return p
	}
	return s.points
}

func values(p []point) []float64 {
	x := make([]float64, len(p))
	for i := range p {
		x[i] = p[i].mean
	}
	return x
}

func median(x []float64) float64 {
	if len(x) == 0 {
		return math.NaN()
	}
	x = slices.Sorted(slices.Values(x))
	if n := len(x); n%2 == 0 {
		return (x[n/2-1] + x[n/2]) / 2
	}
	return x[len(x)/2]
}

// recent is the median of the last ten values, or of all if there are fewer.
func (s *series) recent() float64 { return median(values(s.lastOf(10))) }

// bySteps joins the points of each step: lines of several epochs over one rollout, or of its micro-batches, are no independent samples,
// and a number of the rollout is repeated in all of them.
func bySteps(p []point) (list []point) {
	for _, x := range p {
		if k := len(list); k > 0 && list[k-1].step == x.step {
			list[k-1] = join(list[k-1], x)
			continue
		}
		list = append(list, x)
	}
	return list
}

// slope is that of the least-squares line through the points at 0, 1, 2, …; ok is false below ten of them.
func slope(p []point) (b float64, ok bool) {
	if len(p) < 10 {
		return 0, false
	}
	n := float64(len(p))
	m := mean(p)
	var xy, xx float64
	for i := range p {
		d := float64(i) - (n-1)/2
		xy, xx = xy+d*(p[i].mean-m), xx+d*d
	}
	return xy / xx, true
}

// slopeError is the standard error of a slope b over the points, by the scatter about its line.
func slopeError(p []point, b float64) float64 {
	n := float64(len(p))
	m := mean(p)
	var rest, xx float64
	for i := range p {
		d := float64(i) - (n-1)/2
		rest, xx = rest+(p[i].mean-m-b*d)*(p[i].mean-m-b*d), xx+d*d
	}
	return math.Sqrt(rest / (n - 2) / xx)
}

func mean(p []point) float64 {
	var sum float64
	for i := range p {
		sum += p[i].mean
	}
	return sum / float64(len(p))
}

// highest is the largest mean of n points one after another, NaN where there are fewer.
func highest(p []point, n int) float64 {
	best := math.NaN()
	var sum float64
	for i := range p {
		if sum += p[i].mean; i >= n {
			sum -= p[i-n].mean
		}
		if m := sum / float64(n); i+1 >= n && !(m <= best) {
			best = m
		}
	}
	return best
}

func deviation(p []point) float64 {
	m := mean(p)
	var sum float64
	for i := range p {
		sum += (p[i].mean - m) * (p[i].mean - m)
	}
	return math.Sqrt(sum / float64(max(1, len(p)-1)))
}

// thirds returns the first and the last third.
func thirds(p []point) (first, last []point) {
	n := len(p) / 3
	return p[:n], p[len(p)-n:]
}

// firstBeyond returns the first value outside of [low, high].
func (s *series) firstBeyond(low, high float64) (point, bool) {
	for _, p := range s.points {
		if p.min < low {
			p.mean = p.min
			return p, true
		}
		if p.max > high {
			p.mean = p.max
			return p, true
		}
	}
	switch {
	case s.low.mean < low:
		return s.low, true
	case s.high.mean > high:
		return s.high, true
	}
	return point{}, false
}

// Bars are the blocks of a sparkline.
var bars = []rune("▁▂▃▄▅▆▇█")

// spark draws the series in so many columns; × is a column with values that are not finite.
func (s *series) spark(width int) string {
	p := s.points
	if len(p) == 0 {
		return ""
	}
	cells := make([]float64, 0, width)
	for i := range min(width, len(p)) {
		from, to := i*len(p)/min(width, len(p)), (i+1)*len(p)/min(width, len(p))
		cells = append(cells, mean(p[from:to]))
	}
	low, high := slices.Min(cells), slices.Max(cells)
	out := make([]rune, len(cells))
	for i, v := range cells {
		k := 0
		if high > low {
			k = int((v - low) / (high - low) * 7.999)
		}
		out[i] = bars[max(0, min(k, 7))]
	}
	return string(out)
}

// scatter is the standard deviation of points about a trend, by the differences of neighbours (von Neumann 1941): √(½ mean (x_{i+1} − x_i)²).
func scatter(p []point) float64 {
	if len(p) < 2 {
		return math.NaN()
	}
	sum := 0.
	for i := range len(p) - 1 {
		d := p[i+1].mean - p[i].mean
		sum += float64(d * d)
	}
	return math.Sqrt(sum / float64(2*(len(p)-1)))
}
