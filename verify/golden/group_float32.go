package golden

import (
	"math"

	"plumbline/reference/rl"
)

// verlVectorised is verl's GRPO with group statistics in float32: (r − μ)/(σ + ε), where r is float64 and μ and σ are
// those of the rewards rounded to float32, summed there.
//
// With u the roundoff of float32 and n the size of the group, to first order in every step and with every rounding counted,
//
//	|δμ| ≤ (n + 1)·u·Σ|r|/n + u|μ|
//	|δd| ≤ u|r| + |δμ| + u|d|                  d = r − μ
//	|δv| ≤ Σ (2|d||δd| + δd²)/(n−1) + (n + 3)·u·v
//	σ in √(v ± δv)·(1 ± u),   σ + ε within u of itself
//
// and the quotient is taken at both ends. A group of one has μ = 0 and σ = 1.
func verlVectorised(c *call) []answer {
	b := readOutcome(c)
	o, _ := c.outcome("grpo")
	if !c.ok() {
		return nil
	}
	adv, err := rl.GroupAdvantage(nil, b.score, b.group, o)
	if err != nil {
		return []answer{refused("advantages", nil, err)}
	}
	members := make([][]int, b.rows)
	for i, g := range b.group {
		members[g] = append(members[g], i)
	}
	bound := make([]float64, b.rows)
	for _, ids := range members {
		groupFloat32(bound, b.score, ids, o)
	}
	return []answer{{output: "advantages", got: b.spread(adv), bound: b.spread(bound), leak: LeakVectorised}}
}

// groupFloat32 stores in bound the bounds of one group. They are infinite where float32 overflows.
func groupFloat32(bound, score []float64, ids []int, o rl.GroupOptions) {
	n := float64(len(ids))
	if len(ids) == 1 {
		if o.Scale != rl.ScaleNone {
			bound[ids[0]] = 2 * u32 * math.Abs(score[ids[0]])
		}
		return
	}
	var sum, size float64
	for _, i := range ids {
		sum += score[i]
		size += math.Abs(score[i])
	}
	mean := sum / n
	errMean := float64((n+1)*u32*(size/n)) + float64(u32*math.Abs(mean))
	var v, errVar float64
	for _, i := range ids {
		d := math.Abs(score[i] - mean)
		e := float64(u32*math.Abs(score[i])) + errMean + float64(u32*d)
		v += float64(d * d)
		errVar += float64(2*d*e) + float64(e*e)
	}
	overflows := !(size <= math.MaxFloat32/2) || !(v+errVar <= math.MaxFloat32/2)
	v /= n - 1
	errVar = errVar/(n-1) + float64((n+3)*u32*v)
	low := float64(math.Sqrt(max(v-errVar, 0)) * (1 - u32))
	high := float64(math.Sqrt(v+errVar) * (1 + u32))
	low, high = float64((low+o.Eps)*(1-2*u32)), float64((high+o.Eps)*(1+2*u32))
	at := math.Sqrt(v) + o.Eps
	for _, i := range ids {
		switch d := math.Abs(score[i] - mean); {
		case overflows:
			bound[i] = math.Inf(1)
		case o.Scale == rl.ScaleNone:
			bound[i] = errMean
		default:
			bound[i] = float64(d*max(1/low-1/at, 1/at-1/high)) + errMean/low
		}
	}
}
