package stage

import (
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sync"

	"plumbline/internal/format/dump"
)

// inert remembers which inputs no prediction of an output has read so far: that of the next bug will hardly read them either.
type inert struct {
	lock sync.Mutex
	of   map[string]map[string]bool // by output
}

func (n *inert) names(output string) map[string]bool {
	if n == nil {
		return nil
	}
	n.lock.Lock()
	defer n.lock.Unlock()
	return n.of[output]
}

func (n *inert) remember(output string, names map[string]bool) {
	if n == nil {
		return
	}
	n.lock.Lock()
	defer n.lock.Unlock()
	if n.of == nil {
		n.of = map[string]map[string]bool{}
	}
	if before := n.of[output]; before != nil {
		names = maps.Clone(names)
		maps.DeleteFunc(names, func(name string, _ bool) bool { return !before[name] })
	}
	n.of[output] = names
}

// Spread returns the bound of p, which predict gave for c, and what rounding those inputs on storing can add to it that predict
// does not ask for as an [Input], whose errors it knows: four times the largest difference over runs with the input moved by its
// rounding unit (tolerances 5.20, the empirical allowance).
func Spread(output string, predict func(*Case) *Prediction, c *Case, p *Prediction) []float64 {
	s := spreading{output: output, predict: predict, c: c, p: p, unread: map[string]bool{}}
	var guess map[string]bool
	if len(p.Want) < jointly {
		guess = c.inert.names(output)
	}
	sum, ok := s.over(guess)
	if !ok {
		clear(s.unread)
		sum, _ = s.over(nil)
	}
	c.inert.remember(output, s.unread)
	bound := slices.Clone(p.Bound)
	for i, d := range sum {
		bound[i] += 4 * d
	}
	return bound
}

// jointly is the number of elements up to which inputs are moved together, each of which is another array.
const jointly = 1 << 16

// spreading is what [Spread] works on.
type spreading struct {
	output  string
	predict func(*Case) *Prediction
	c       *Case
	p       *Prediction
	unread  map[string]bool // inputs that predict does not read
}

// over returns the differences of the runs, summed over the inputs. Those of still are moved together, as each of them would be in the runs
// that tell whether it is read; it reports false where that changes anything.
func (s *spreading) over(still map[string]bool) (sum []float64, ok bool) {
	n := len(s.p.Want)
	r := rand.New(rand.NewPCG(uint64(n), 1))
	random := func(x float64) float64 { return x * float64(2*r.IntN(2)-1) }
	same := func(x float64) float64 { return x }
	sum = make([]float64, n)
	b := s.c.B
	first, second := b, b
	for _, name := range casts(b) {
		u, _ := b.Tensors[name].Type.Unit()
		if name == s.output || u == 0 || s.c.errors[name] != nil {
			continue
		}
		if still[name] {
			first, second = first.With(name, s.moved(name, random)), second.With(name, s.moved(name, same))
			s.unread[name] = true
			continue
		}
		most := make([]float64, n)
		for run, by := range []func(x float64) float64{
			random, same, func(x float64) float64 { return -x },
			math.Abs, func(x float64) float64 { return -math.Abs(x) },
			random, random, random,
		} {
			if run == 2 && !slices.ContainsFunc(most, func(d float64) bool { return d != 0 }) {
				s.unread[name] = true
				break
			}
			q := s.predict(s.c.Of(b.With(name, s.moved(name, by)), s.c.Set))
			if q == nil || len(q.Want) != n {
				continue
			}
			for i, w := range q.Want {
				if d := math.Abs(w - s.p.Want[i]); d > most[i] {
					most[i] = d
				}
			}
		}
		for i, d := range most {
			sum[i] += d
		}
	}
	if first == b {
		return sum, true
	}
	for _, b := range []*dump.Batch{first, second} {
		q := s.predict(s.c.Of(b, s.c.Set))
		if q == nil || len(q.Want) != n {
			return nil, false
		}
		for i, w := range q.Want {
			if math.Abs(w-s.p.Want[i]) > 0 {
				return nil, false
			}
		}
	}
	return sum, true
}

// moved returns the numbers of an input, each moved by its rounding unit times what by makes of it.
func (s *spreading) moved(name string, by func(x float64) float64) []float64 {
	t := s.c.B.Tensors[name]
	u, _ := t.Type.Unit()
	moved := make([]float64, len(t.Data))
	for i, x := range t.Data {
		moved[i] = x + float64(u*by(x))
	}
	return moved
}
