package rl

import "testing"

// BenchmarkPolicy is one loss with gradient over a million tokens, PPO with k3 on 1000 rows of 1000.
func BenchmarkPolicy(b *testing.B) {
	const rows, cols = 1000, 1000
	p := PolicyBatch{Rows: rows, Cols: cols, LogProbs: make([]float64, rows*cols), Old: make([]float64, rows*cols),
		Ref: make([]float64, rows*cols), Adv: make([]float64, rows*cols), Mask: make([]bool, rows*cols)}
	for i := range p.LogProbs {
		p.LogProbs[i], p.Old[i], p.Ref[i] = -float64(i%97)/50, -float64(i%89)/50, -float64(i%83)/50
		p.Adv[i], p.Mask[i] = float64(i%7-3), i%13 != 0
	}
	o := PolicyOptions{Clip: ClipOptions{Low: .2, High: .28, Dual: 3}, Ratio: RatioOptions{LogClamp: 20}, KLBeta: .1,
		KL: KLOptions{Kind: KLK3, ClampIn: 20, ClampOut: 10}, Agg: AggOptions{Outside: OutsideIgnore}}
	var r PolicyResult
	b.ReportAllocs()
	for b.Loop() {
		if err := Policy(&r, p, o); err != nil {
			b.Fatal(err)
		}
	}
}
