package trainer

import (
	"math"
	"slices"
	"strings"

	"plumbline/verify/convention"
)

// settings are the options of a run as the pipeline reads them: words, numbers with ±Inf for no bound, truth values. What does
// not apply is "", 0 or false.
type settings struct {
	profile, framework string

	maskAll, nanOutside            bool
	meanEps                        float64
	whitenScope, whitenMask        string
	whitenDDof                     int
	whitenPlace                    string
	whitenEps                      float64
	whitenShift                    string
	remask, constantZero           bool
	scoreIndex                     string
	rewardsWhiten                  bool
	rewardClip                     string
	rewardLow, rewardHigh          float64
	eosRule                        string
	eosPenalty                     float64
	gamma, lambda                  float64
	hole, valueSpan                string
	bootstrap                      bool
	returnsAfter                   bool
	returnsMask                    string
	advKind, center, scale, stdOf  string
	advDDof                        int
	advEps                         float64
	zeroStd, singleton             string
	contiguous, normalizeThenSum   bool
	manyRewards                    bool
	broadcast                      bool
	klKind                         string
	klIn, klOut, klFloorOnly       float64 // klFloorOnly: the upper bound of d, +Inf where clamp_in holds below only
	klClamps                       bool
	klSum                          bool
	beta                           float64
	klPlace, klGrad                string
	klISCap                        float64
	entropyAgg                     string
	klWeighted, klTokens           bool // klTokens: a mean over tokens, whatever the policy loss
	valueTokens                    bool // the same of the value loss
	ratioLevel                     string
	ratioClamp, seqLogMax, lenEps  float64
	stopgrad                       bool
	ratioPerToken                  bool // a sequence's ratio has the gradient of GSPO-token
	engineRatio                    bool // the ratio is taken to the engine's log-probs
	tisLevel, tisRule, tisGate     string
	tisLow, tisHigh, tisClamp      float64
	tisNormalize                   bool
	loss                           string
	clipLow, clipHigh              float64 // +Inf: no bound
	capAbsolute                    bool
	dual, delta                    float64 // +Inf: none
	tauPos, tauNeg                 float64
	kPos, lambdaPos, kNeg, lamNeg  float64
	dppoLimit, droBeta             float64
	covLow, covHigh                float64
	covFraction, covCoef           float64
	clipFrac                       string
	valueFactor, valueClip         float64
	valueMask                      string
	valueCoef                      float64
	valueInLoss                    bool
	entropyCoef                    float64
	entropyLogits                  string
	agg, denominator               string
	countEmpty, divBatch, divSteps bool
	aggLenEps                      float64
	temperature, tempEps           float64
	rawEngine                      bool
}

func settingsOf(s *convention.Set) settings {
	word := func(name string) string {
		if v := s.Value(name); v.Kind() == convention.Enum {
			return v.Text()
		}
		return ""
	}
	number := func(name string, absent float64) float64 {
		if v := s.Value(name); v.Kind() == convention.Number {
			return v.Num()
		}
		return absent
	}
	truth := func(name string) bool {
		v := s.Value(name)
		return v.Kind() == convention.Bool && v.Bool()
	}
	inf := math.Inf(1)
	o := settings{
		maskAll: word("mask.tokens") == "none", nanOutside: word("mean.nan_outside") == "propagate",
		meanEps:     number("mean.eps", 0),
		whitenScope: word("whiten.scope"), whitenMask: word("whiten.mask"), whitenDDof: int(number("whiten.ddof", 0)),
		whitenPlace: word("whiten.eps_place"), whitenEps: number("whiten.eps", 0), whitenShift: word("whiten.shift_mean"),
		remask: truth("whiten.remask"), constantZero: truth("whiten.constant_zero"),
		scoreIndex: word("score.index"), rewardsWhiten: word("rewards.whiten") == "shift_mean_false",
		rewardClip: word("reward.clip"), rewardLow: -inf, rewardHigh: inf,
		eosRule: word("eos.rule"), eosPenalty: number("eos.penalty", math.NaN()),
		gamma: number("gae.gamma", 1), lambda: number("gae.lambda", 1), hole: word("gae.hole"), valueSpan: word("gae.value_mask"),
		bootstrap:    word("gae.truncated_bootstrap") == "value",
		returnsAfter: s.Value("returns.before_whiten").String() == "false", returnsMask: word("returns.remask"),
		advKind: word("adv.kind"), center: word("adv.center"), scale: word("adv.scale"), stdOf: word("adv.std_of"),
		advDDof: int(number("adv.ddof", 0)), advEps: number("adv.eps", 0), zeroStd: word("adv.zero_std"), singleton: word("adv.singleton"),
		contiguous: word("adv.group_by") == "contiguous_blocks", normalizeThenSum: word("adv.multi") == "normalize_then_sum",
		manyRewards: word("adv.multi") != "", broadcast: word("rfpp.mode") == "broadcast",
		klKind: word("kl.kind"), klIn: number("kl.clamp_in", inf), klOut: number("kl.clamp_out", inf),
		klSum: word("kl.reduce") == "sequence_sum", beta: number("kl.beta", 0), klPlace: word("kl.place"), klGrad: word("kl.grad"),
		klISCap: number("kl.is_cap", 0), klWeighted: word("kl.under_is_weight") == "inside" || truth("tis.applies_to_kl"),
		klTokens: word("kl.agg") == "token", valueTokens: word("value.agg") == "token", entropyAgg: word("entropy.agg"),
		ratioLevel: word("ratio.level"), ratioClamp: number("ratio.log_clamp", inf), seqLogMax: number("ratio.seq_log_max", inf),
		lenEps: number("ratio.len_eps", 0), ratioPerToken: word("ratio.grad") == "token", engineRatio: word("ratio.old") == "engine", stopgrad: word("ratio.old") == "stopgrad_new",
		tisLevel: word("tis.level"), tisRule: word("tis.rule"), tisGate: word("tis.gate"), tisLow: number("tis.low", -inf),
		tisHigh: number("tis.high", inf), tisClamp: number("tis.log_clamp", inf), tisNormalize: truth("tis.normalize"),
		loss: word("loss.kind"), clipLow: number("clip.low", inf), clipHigh: number("clip.high", inf),
		capAbsolute: truth("clip.high_is_absolute"), dual: number("clip.dual", inf), delta: number("clip.delta", inf),
		tauPos: number("sapo.tau_pos", 1), tauNeg: number("sapo.tau_neg", 1.05),
		kPos: number("vespo.k_pos", 2), lambdaPos: number("vespo.lambda_pos", 3), kNeg: number("vespo.k_neg", 3), lamNeg: number("vespo.lambda_neg", 2),
		dppoLimit: number("dppo.limit", 3), droBeta: number("dro.beta", 0.1),
		covLow: number("cov.lower", 1), covHigh: number("cov.upper", 5), covFraction: number("cov.fraction", 2e-4), covCoef: number("cov.coef", 1),
		clipFrac: word("metric.clip_frac"), valueFactor: number("value.factor", 0), valueClip: number("value.clip", inf),
		valueMask: word("value.mask"), valueCoef: number("value.coef", 1),
		valueInLoss: s.Value("value.coef").Kind() == convention.Number, entropyCoef: number("entropy.coef", 0), entropyLogits: word("entropy.logits"),
		agg: word("agg.kind"), denominator: word("agg.denominator"), countEmpty: word("agg.empty_rows") == "counted",
		divBatch: truth("agg.div_batch"), divSteps: truth("agg.div_ga"), aggLenEps: number("agg.len_eps", 0),
		temperature: number("logp.temperature", 1), tempEps: number("logp.temp_eps", 0), rawEngine: word("logp.source") == "raw",
	}
	if v := s.Value("reward.clip_range"); v.Kind() == convention.Tuple {
		o.rewardLow, o.rewardHigh = v.Nums()[0], v.Nums()[1]
	}
	o.klFloorOnly = o.klIn
	if word("kl.clamp_in_side") == "below" {
		o.klFloorOnly = inf
	}
	o.klClamps = o.klKind == "k3" || truth("kl.clamp_applies_to_k1")
	if o.klPlace == "" || o.klKind == "" {
		o.klPlace = "none"
	}
	o.profile, o.framework = profileOf(s)
	return o
}

// profileOf returns the profile that most options come from, and its framework.
func profileOf(s *convention.Set) (profile, framework string) {
	count := map[string]int{}
	for _, name := range s.Names() {
		if o := s.Origin(name); strings.Contains(o, "@") {
			count[o]++
			if count[o] > count[profile] {
				profile = o
			}
		}
	}
	for _, p := range convention.Profiles() {
		if p.Name == profile {
			framework = p.Framework
		}
	}
	return profile, framework
}

// kind reports whether the estimator of advantages is one of the names.
func (o *settings) kind(names ...string) bool { return slices.Contains(names, o.advKind) }

// term reports whether a KL term enters the loss.
func (o *settings) term() bool { return o.klPlace == "loss" && o.beta != 0 }
