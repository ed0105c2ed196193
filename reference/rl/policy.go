package rl

import "math"

// LossKind is the policy loss of one token. It is the option loss.kind.
type LossKind int

const (
	LossPPO       LossKind = iota // [PPO] on the ratio
	LossReinforce                 // [Reinforce], w = 1; verl's gpg
	LossCISPO                     // [Reinforce] with [CISPOWeight]
	LossGSPO                      // [PPO] on a sequence ratio: Ratio.Level must be seq_mean
	LossGMPO                      // [GMPO]; the aggregation is the mean over rows, no Weight
	LossSAPO                      // [SAPO] on the ratio
	LossLUSPO                     // [PPO]; what is particular is the aggregation luspo
	LossVESPO                     // [Reinforce] with [VESPOWeight]
	LossDPPOTV                    // [Reinforce] with [DPPOWeight], tv
	LossDPPOKL                    // [Reinforce] with [DPPOWeight], kl
	LossDRO                       // [DRO]
	LossClipCov                   // [PPO] without the tokens of PolicyBatch.Drop, or else of [ClipCovCandidates]
	LossKLCov                     // [KLCov] with [KLCovSelect]
)

var lossKinds = enumeration[LossKind]("loss.kind", "ppo", "reinforce", "cispo", "gspo", "gmpo", "sapo", "luspo", "vespo", "dppo_tv", "dppo_kl", "dro",
	"clip_cov", "kl_cov")

func (k LossKind) String() string { return lossKinds.text(k) }

// ParseLossKind reads a value of loss.kind.
func ParseLossKind(s string) (LossKind, error) { return lossKinds.parse(s) }

// PolicyBatch is what a policy loss is computed from; all slices are rows×cols.
type PolicyBatch struct {
	Rows, Cols int
	LogProbs   []float64 // under the policy being trained
	Old        []float64 // at the start of the update; nil: a detached copy of LogProbs (ratio.old stopgrad_new)
	Ref        []float64 // under the frozen reference; read if KLBeta is not 0
	Adv        []float64
	Mask       []bool    // nil: every cell
	Weight     []float64 // multiplies the policy term: [ISWeights], [OffPolicyMask], [HighEntropyMask]; nil: 1
	Gamma      []float64 // vespo: engine-mismatch weights of the tokens, which go into its own weight; nil: 1
	Drop       []bool    // tokens that clip_cov leaves out; nil: all candidates
}

// PolicyOptions selects a policy loss. The zero value is PPO on the token ratio clipped to exactly 1.
type PolicyOptions struct {
	Kind  LossKind
	Ratio RatioOptions
	Clip  ClipOptions // dppo reads Low, High as the trust region

	TauPos, TauNeg float64      // sapo; TRL 1.0 and 1.05
	DPPOLimit      float64      // dppo: upper bound of the weight; verl 3
	DROBeta        float64      // dro
	VESPO          VESPOOptions // vespo
	Cov            CovOptions   // clip_cov, kl_cov
	GMPO           GMPOOptions  // gmpo

	KL            KLOptions // of the KL term
	KLBeta        float64   // kl.beta with kl.place loss; 0: no KL term
	KLUnderWeight bool      // kl.under_is_weight inside: Weight multiplies the KL term, too

	Agg AggOptions
}

// PolicyResult receives what [Policy] computes; slices that are nil are allocated, others must fit and are overwritten.
type PolicyResult struct {
	Loss    float64
	Token   []float64 // ℓ of every cell: policy term × weight + β·KL, before aggregation; gmpo: the row's loss
	Ratio   []float64 // ρ of every cell
	DLogp   []float64 // ∂Loss/∂LogProbs
	DRatio  []float64 // ∂Loss/∂ρ, which DLogp already contains; is 0 for losses that do not use the ratio
	Weights []float64 // ∂Loss/∂Token
}

// Policy computes a policy loss and its gradient with respect to the log-probs:
//
//	Loss = Agg(Weight·ℓ(ρ, A) + β·KL)
//
// in the order of TRL: the weights multiply the policy term, the KL term is added after. No gradient flows into Old, Ref, Adv
// and Weight. With kl.grad is_corrected the ratio of the KL term is the ρ of the loss, at its level, also for gradients.
//
// Masked cells have gradient 0 (but for the aggregation luspo). With Agg.Outside ignore nothing they hold matters; with
// propagate NaN or ±Inf in them makes the loss NaN, as in the frameworks that multiply by the mask.
//
// Errors: those of [Aggregate].
//
// Source: the functions it is made of. The golden section policy_loss pins it.
func Policy(res *PolicyResult, b PolicyBatch, o PolicyOptions) error {
	n := b.Rows * b.Cols
	old := b.Old
	if old == nil {
		old = b.LogProbs
	}
	checkGrid(b.Rows, b.Cols, b.Mask, b.LogProbs, old, b.Adv)
	need(lossKinds.has(o.Kind), badOption)
	need((o.KLBeta == 0 || len(b.Ref) == n) && (b.Weight == nil || len(b.Weight) == n) && (b.Drop == nil || len(b.Drop) == n) && (b.Gamma == nil || len(b.Gamma) == n), badLength)
	need(o.Kind != LossGMPO || b.Weight == nil, badOption)
	need(o.Kind != LossGSPO || o.Ratio.Level == RatioSeqMean, badOption)
	if o.KLBeta != 0 {
		o.KL.need()
	}
	res.Token, res.DLogp = output(res.Token, n), output(res.DLogp, n)
	res.DRatio, res.Weights = output(res.DRatio, n), output(res.Weights, n)
	clear(res.DLogp)
	clear(res.DRatio)

	res.Ratio = Ratio(res.Ratio, b.LogProbs, old, b.Mask, b.Rows, b.Cols, o.Ratio)
	if o.Kind == LossGMPO {
		o.Agg = AggOptions{Kind: AggSeqMeanTokenMean, EmptyRows: AggCounted, Outside: OutsideIgnore, Empty: o.Agg.Empty,
			Denominator: o.Agg.Denominator, Rows: o.Agg.Rows, Steps: o.Agg.Steps, Scale: o.Agg.Scale}
	}
	o.policyTerm(res, &b, old)

	if w := b.Weight; w != nil {
		for i := range w {
			res.Token[i] = float64(w[i] * res.Token[i])
			res.DLogp[i] = float64(w[i] * res.DLogp[i])
			res.DRatio[i] = float64(w[i] * res.DRatio[i])
		}
	}
	if o.KLBeta != 0 {
		for i, x := range b.LogProbs {
			beta := o.KLBeta
			if b.Weight != nil && o.KLUnderWeight {
				beta *= b.Weight[i]
			}
			rho := res.Ratio[i]
			if o.KL.Grad == KLStraightThroughK2 && o.KL.ISCap > 0 {
				rho = math.Exp(x - old[i]) // its weight is that of the token, whatever the ratio of the loss is
			}
			k, dlp, dw := o.KL.at(x-b.Ref[i], rho)
			res.Token[i] += float64(beta * k)
			res.DLogp[i] += float64(beta * dlp)
			res.DRatio[i] += float64(beta * dw)
		}
	}

	var err error
	res.Loss, res.Weights, err = Aggregate(res.Weights, res.Token, b.Mask, b.Rows, b.Cols, o.Agg)
	if err != nil {
		return err
	}
	for i, w := range res.Weights {
		if w == 0 && b.Mask != nil && !b.Mask[i] && o.Agg.Outside == OutsideIgnore {
			res.DLogp[i], res.DRatio[i] = 0, 0
			continue
		}
		res.DLogp[i] = float64(w * res.DLogp[i])
		res.DRatio[i] = float64(w * res.DRatio[i])
	}
	RatioBackward(res.DLogp, res.DRatio, res.Ratio, b.LogProbs, old, b.Mask, b.Rows, b.Cols, o.Ratio)
	return nil
}

// policyTerm stores the losses of the cells in res.Token and their derivatives in res.DRatio and res.DLogp.
func (o *PolicyOptions) policyTerm(res *PolicyResult, b *PolicyBatch, old []float64) {
	lp, ratio := b.LogProbs, res.Ratio
	switch o.Kind {
	case LossPPO, LossGSPO, LossLUSPO:
		PPO(res.Token, res.DRatio, ratio, b.Adv, o.Clip)
	case LossSAPO:
		SAPO(res.Token, res.DRatio, ratio, b.Adv, o.TauPos, o.TauNeg)
	case LossReinforce:
		Reinforce(res.Token, res.DLogp, lp, b.Adv, nil)
	case LossCISPO:
		w := CISPOWeight(res.Weights, ratio, o.Clip)
		Reinforce(res.Token, res.DLogp, lp, b.Adv, w)
	case LossVESPO:
		w := VESPOWeight(res.Weights, lp, old, b.Adv, b.Gamma, b.Mask, b.Rows, b.Cols, o.VESPO)
		Reinforce(res.Token, res.DLogp, lp, b.Adv, w)
	case LossDPPOTV, LossDPPOKL:
		div := DPPOTV
		if o.Kind == LossDPPOKL {
			div = DPPOKL
		}
		w := DPPOWeight(res.Weights, ratio, lp, old, b.Adv, div, o.DPPOLimit, o.Clip)
		Reinforce(res.Token, res.DLogp, lp, b.Adv, w)
	case LossDRO:
		DRO(res.Token, res.DLogp, lp, old, b.Adv, o.DROBeta)
	case LossClipCov:
		drop := b.Drop
		if drop == nil {
			cov := TokenCovariance(res.Weights, lp, b.Adv, b.Mask, o.Cov.MeanEps)
			drop = ClipCovCandidates(nil, cov, ratio, b.Adv, b.Mask, o.Clip, o.Cov)
		}
		PPO(res.Token, res.DRatio, ratio, b.Adv, o.Clip)
		for i, d := range drop {
			if d {
				res.Token[i], res.DRatio[i] = 0, 0
			}
		}
	case LossKLCov:
		cov := TokenCovariance(res.Weights, lp, b.Adv, b.Mask, 0)
		held := KLCovSelect(nil, cov, b.Mask, o.Cov)
		KLCov(res.Token, res.DRatio, res.DLogp, ratio, lp, old, b.Adv, held, o.Cov.Coef)
	case LossGMPO:
		o.geoMean(res, b, old)
	}
}

// geoMean spreads the row losses of [GMPO] over the cells so that the mean over rows of row means gives them back, with the
// gradient in terms of the cells: DLogp of a cell is n times its share, which the aggregation divides by n again.
func (o *PolicyOptions) geoMean(res *PolicyResult, b *PolicyBatch, old []float64) {
	perRow, _ := GMPO(nil, res.DLogp, b.LogProbs, old, b.Adv, b.Mask, b.Rows, b.Cols, o.GMPO)
	for r := range b.Rows {
		var n float64
		for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
			res.Token[i] = perRow[r]
			if b.Mask == nil || b.Mask[i] {
				n++
			}
		}
		for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
			res.DLogp[i] *= n
		}
	}
}
