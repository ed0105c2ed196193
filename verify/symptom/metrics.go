package symptom

import (
	"fmt"
	"math"
	"slices"
	"strconv"
)

// Metric is what a log says of one quantity.
type Metric struct {
	Name      string
	Quantity  *Quantity // nil: not in the dictionary
	Trap      string
	Spark     string
	N, Bad    int64
	Min, Max  float64
	Last      float64
	Level     int // 0: of a console, 1: of TensorBoard, 2: with all digits
	FirstStep int64
}

// Curve is a metric over the run: the steps, and the values or, where neighbours were joined, their mean, smallest and largest.
type Curve struct{ Steps, Mean, Low, High []float64 }

// Curve returns the values of a metric by its name in the log; without any it is empty.
func (w *Watch) Curve(name string) (c Curve) {
	for _, s := range w.series {
		if s == nil || s.name != name {
			continue
		}
		for _, p := range s.points {
			c.Steps, c.Mean, c.Low, c.High = append(c.Steps, float64(p.step)), append(c.Mean, p.mean), append(c.Low, p.min), append(c.High, p.max)
		}
		if s.each <= 1 {
			c.Low, c.High = nil, nil
		}
	}
	return c
}

// Metrics returns every metric that has values: those of the dictionary first, in the order of the log.
func (w *Watch) Metrics(width int) (known, unknown []Metric) {
	for _, s := range w.series {
		if s == nil || s.n+s.bad+s.missing == 0 {
			continue
		}
		m := Metric{Name: s.name, Quantity: s.what, Spark: s.spark(width), N: s.n, Bad: s.bad, Min: s.low.mean, Max: s.high.mean, Last: s.last.mean, Level: s.level, FirstStep: s.first.step}
		if s.n == 0 {
			m.Min, m.Max, m.Last = math.NaN(), math.NaN(), math.NaN()
		}
		if s.known != nil {
			m.Trap = s.known.Trap
		}
		if s.what != nil && s.what.ID != "positive" && s.what.ID != "share" && s.known != nil {
			known = append(known, m)
		} else {
			unknown = append(unknown, m)
		}
	}
	for _, s := range []*series{&w.micro.std, &w.micro.policy, &w.micro.kl, &w.micro.total} {
		if s.n > 0 && !slices.ContainsFunc(known, func(m Metric) bool { return m.Name == "[Micro] "+s.name }) {
			known = append(known, Metric{Name: "[Micro] " + s.name, Quantity: quantity[map[string]string{"rewards": "reward_std", "pg_loss": "loss_policy", "kl": "kl_penalty", "total": "loss"}[s.name]],
				Spark: s.spark(width), N: s.n, Bad: s.bad, Min: s.low.mean, Max: s.high.mean, Last: s.last.mean})
		}
	}
	return known, unknown
}

// Sentence says what values a metric had.
func (m Metric) Sentence() string {
	switch {
	case m.N == 0:
		return "no finite value"
	case m.Min == m.Max:
		return number(m.Min) + " throughout"
	}
	return fmt.Sprintf("%s to %s, last %s", short(m.Min), short(m.Max), short(m.Last))
}

// short is a number in about 7 columns: three of them and the words between have room beside the name and the sparkline.
func short(v float64) string {
	for digits := 4; digits > 2; digits-- {
		if text := strconv.FormatFloat(v, 'g', digits, 64); len(text) <= 7 {
			return text
		}
	}
	return strconv.FormatFloat(v, 'g', 2, 64)
}
