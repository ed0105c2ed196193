package rl

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestNoAllocation: with the outputs given by the caller, what runs over a million tokens allocates nothing. Scratch is left
// for sorting: groups whose samples are not neighbours, quantiles, the covariance losses.
func TestNoAllocation(t *testing.T) {
	b := newBitBatch()
	const rows, cols = bitRows, bitCols
	out, out2 := make([]float64, rows*cols), make([]float64, rows*cols)
	short := make([]float64, rows)
	logits := make([]float64, len(b.logits))
	blocks := GroupBlocks(rows, 3)
	var policy PolicyResult
	var value ValueResult
	batch := PolicyBatch{Rows: rows, Cols: cols, LogProbs: b.lp, Old: b.old, Ref: b.ref, Adv: b.adv, Mask: b.mask}
	for name, f := range map[string]func(){
		"GAE": func() {
			GAE(out, out2, Rollout{Rows: rows, Cols: cols, Reward: b.adv, Value: b.value, Mask: b.mask}, GAEOptions{Gamma: .99, Lambda: .95, Hole: HoleCarry})
		},
		"RewardToGo":   func() { RewardToGo(out, b.adv, b.mask, rows, cols, .9, HoleCarry) },
		"TokenRewards": func() { TokenRewards(out, b.rows, b.ref, b.mask, nil, rows, cols, RewardOptions{Beta: .05}) },
		"Whiten":       func() { must(Whiten(out, b.adv, b.mask, rows, cols, own)) },
		"Whiten rows": func() {
			o := own
			o.Scope = ScopeRow
			must(Whiten(out, b.adv, b.mask, rows, cols, o))
		},
		"GroupAdvantage": func() {
			must(GroupAdvantage(short, b.rows, blocks, GroupOptions{Scale: ScaleGroupStd, DDof: 1, Eps: 1e-6}))
		},
		"GroupAdvantage of all": func() {
			must(GroupAdvantage(short, b.rows, nil, GroupOptions{Center: CenterLOO, Scale: ScaleLOOStd, DDof: 1, Eps: 1e-6}))
		},
		"Broadcast": func() { Broadcast(out, b.rows, b.mask, rows, cols) },
		"KL":        func() { KL(out, out2, b.lp, b.ref, b.old, KLOptions{Kind: KLK3, Grad: KLISCorrected}) },
		"Ratio":     func() { Ratio(out, b.lp, b.old, b.mask, rows, cols, RatioOptions{Level: RatioSeqMean}) },
		"ISWeights": func() {
			ISWeights(out, b.lp, b.old, b.mask, rows, cols, TISOptions{Level: TISSeqSum, Rule: TISClamp, High: 2})
		},
		"Policy": func() {
			must(0, Policy(&policy, batch, PolicyOptions{Clip: ClipOptions{Low: .2, High: .2}, KLBeta: .1, KL: KLOptions{Kind: KLK3}, Agg: AggOptions{Outside: OutsideIgnore}}))
		},
		"Policy GSPO": func() {
			must(0, Policy(&policy, batch, PolicyOptions{Kind: LossGSPO, Ratio: RatioOptions{Level: RatioSeqMean}, Clip: ClipOptions{Low: .2, High: .2}}))
		},
		"ValueLoss": func() {
			must(0, ValueLoss(&value, b.value, b.ratio, b.adv, b.mask, rows, cols, ValueOptions{Clip: .2}))
		},
		"Entropy":         func() { Entropy(out, b.logits, bitVocab, EntropyOptions{}) },
		"EntropyBackward": func() { EntropyBackward(logits, b.adv, b.logits, bitVocab, EntropyOptions{}) },
		"LogProbs":        func() { LogProbs(out, b.logits, b.ids, bitVocab, LogProbOptions{}) },
		"LogProbsBackward": func() {
			LogProbsBackward(logits, b.adv, b.logits, b.ids, bitVocab, LogProbOptions{})
		},
		"CrossEntropy":  func() { CrossEntropy(logits, b.logits, b.ids, bitVocab, 0) },
		"Clipped":       func() { Clipped(out, b.ratio, b.adv, ClipFracBinding, ClipOptions{Low: .2, High: .2}) },
		"SequenceLoss":  func() { SequenceLoss(out, b.lp, b.ref, b.rows, b.mask, rows, cols, SequenceOptions{Beta: .1}) },
		"SliceResponse": func() { SliceResponse(out[:rows*8], b.lp, rows, cols, 1, AlignShifted, 3, 8) },
	} {
		require.Zero(t, testing.AllocsPerRun(20, f), name)
	}
}
