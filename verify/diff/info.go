package diff

import (
	"fmt"
	"strings"

	"plumbline/verify/check"
	"plumbline/verify/stage"
)

// The checks.
const (
	idPasses = "diff/passes"
	idRuns   = "diff/runs"
)

// Bugs that only a second pass shows.
const (
	otherWeights = "OTHER-WEIGHTS"
	notRepeated  = "NOT-REPEATABLE"
	dropoutOn    = "DROPOUT-ON"
	paddingSeen  = "PADDING-SEEN"
	batchSeen    = "BATCH-SEEN"
	packSeen     = "PACK-SEEN"
	rngLost      = "RNG-LOST"
	dataLost     = "DATA-ORDER-LOST"
	weightsLost  = "WEIGHTS-LOST"
	momentsLost  = "OPTIMIZER-LOST"
	stateLost    = "STATE-LOST"
	ignored      = "OPTION-IGNORED"
	oneSided     = "ONE-SIDED"
	meanOfMeans  = "AGG-LOCAL-DENOMINATOR"
	notDivided   = "AGG-GA-MISSING"
	dividedTwice = "AGG-GA-TWICE"
)

// own are the bugs that no other room knows.
var own = []check.FaultInfo{
	{ID: otherWeights, Title: "weights, adapter or precision of the two sides differ: which of these, and on which side, two tensors do not tell",
		Cause: "older weights in the engine, an adapter that is missing or scaled otherwise, another rope, quantised weights, other ids", Source: "V12, V25",
		Fix: "score one prompt on both sides with the same dtype; compare a checksum of the weights and of the adapter after the sync; dump logp_ref to see an engine that stayed at the base"},
	{ID: notRepeated, Title: "the same run twice does not draw the same tokens or rows", Cause: "a seed that is not set, or a sampler, a data loader or a kernel with a clock of its own", Source: "V11",
		Fix: "seed the sampler, the data loader and torch before the model is built; then run twice again"},
	{ID: dropoutOn, Title: "the same weights and ids give other log-probs the second time", Cause: "dropout is on in a pass that must be an evaluation, or a kernel adds in another order each time", Source: "P038, P073, V11",
		Fix: "call eval() before log-probs are taken; torch.use_deterministic_algorithms(True) tells which kernel it is otherwise"},
	{ID: paddingSeen, Title: "log-probs depend on padding", Cause: "the attention mask or the positions are not handed to the model", Source: "P011, P046, V07",
		Fix: "hand attention_mask and position_ids to every pass"},
	{ID: batchSeen, Title: "log-probs of a row depend on the other rows of its batch", Cause: "a mask of packed rows that is missing, a state that is kept, dropout, a quantisation with outliers of the batch", Source: "P154, V07, V20",
		Fix: "compare a row alone with the same row in its batch; reset states; use an attention mask of blocks for packed rows"},
	{ID: packSeen, Title: "log-probs of a sequence depend on what is packed before it", Cause: "attention crosses the borders of packed sequences, positions run on over them, or a log-prob is taken from the last token of the sequence before", Source: "P084, P096, P154, V07, V20",
		Fix: "hand cu_seqlens or a mask of blocks to attention, positions that begin at 0 in every sequence, and shift within sequences"},
	{ID: rngLost, Title: "the resumed run draws other tokens than the one that was not interrupted", Cause: "the random state is not in the checkpoint, or is restored before something else draws from it", Source: "V29",
		Fix: "save and restore the states of Python, NumPy, torch and CUDA, and of the sampler"},
	{ID: dataLost, Title: "the resumed run goes on with other prompts", Cause: "the data loader restarts at the beginning, or one step off, or the random state that shuffles is lost", Source: "P072, P135, V29",
		Fix: "save the position of the sampler, and skip what was consumed, not what was prepared"},
	{ID: weightsLost, Title: "the resumed run has other weights", Cause: "the adapter or a part of the weights is not loaded, the base is loaded over it, or the update before was made with another schedule", Source: "P141, P158, V29",
		Fix: "compare checksums of all trained tensors before saving and after loading"},
	{ID: stateLost, Title: "the resumed run goes on from another state: other weights, or other prompts; input_ids in the dump would tell which",
		Cause: "weights, adapter or the place in the data are not restored, or the update before was made with another schedule", Source: "P072, P135, P141, V29",
		Fix: "compare checksums of all trained tensors before saving and after loading, and the first prompts of both runs"},
	{ID: momentsLost, Title: "the resumed run takes other steps from the same weights and gradients", Cause: "moments of the optimizer, the schedule or the loss scale are not restored", Source: "P124, V29",
		Fix: "save and restore the optimizer, the scheduler and the scaler with the weights"},
	{ID: ignored, Title: "the option changes nothing", Cause: "it is read under another name, overwritten later, or both branches compute the same", Source: "P009, V33",
		Fix: "search the code for where the option is read, and print it there"},
	{ID: oneSided, Title: "the two runs differ by little and always to the same side", Cause: "a factor, a missing term or a truncation where rounding is expected", Source: "V20",
		Fix: "compare the expressions that make the first tensor that differs"},
}

// relationInfo describes a relation.
type relationInfo struct{ name, doc, fix string }

var relations = []relationInfo{
	{"repeat", "the same run twice gives the same numbers", "seed everything; eval() where log-probs are taken"},
	{"partition", "the same rows in another partition into micro-batches or ranks give the same numbers", "divide by the tokens of the step, not of the micro-batch"},
	{"padding", "the same rows with other padding, or packed, give the same numbers", "hand attention mask and positions to every pass"},
	{"packing", "the same rows packed behind one another give the numbers of padded ones", "attention, positions, shifts and denominators must end where a sequence ends"},
	{"permute", "the same rows in another order give the same numbers", "undo every sort before tensors are used together"},
	{"resume", "a run that was saved and resumed gives the numbers of the one that was not", "save weights, optimizer, schedule, random state and position of the data"},
	{"toggle", "a run with an option changed gives other numbers", "look for where the option is read"},
}

// Infos describes the checks.
func Infos() []check.Info {
	list := []check.Info{
		{Name: idPasses, Doc: fmt.Sprintf("two passes over the same tokens differ by rounding\n\nΔ = b − a of log-probs of the same tokens. Rounding of a forward pass gives Δ ≈ σ·(1 − p) with σ at most %g in bfloat16 and few layers, 4 times that in deep models, 1/8 of it in float16. "+
			"A temperature leaves 0 ≤ b − α·a ≤ (α − 1)·H, top-p b = a − ln S with a kept mass S below 1, both whatever the model is.", stage.OrdinaryScale),
			Source: "Rényi 1961; arXiv 2512.23087; V09, V10, V12", Fix: "as the cause that is named says; without one compare weights, adapter and precision on one prompt", Faults: own[:1]},
		{Name: idRuns, Doc: "two runs are equal, or part where the report says\n\nTensors of every step are compared in the order in which they come about: prompts, tokens, rewards, log-probs, advantages, losses, gradients. The first that differs by more than rounding is named.",
			Source: "V13, V20", Fix: "compare the code and the options that make the first tensor that differs"},
	}
	for _, r := range relations {
		info := check.Info{Name: "diff/" + r.name, Doc: r.doc + "\n\n" + bound, Source: map[string]string{"repeat": "V11", "partition": "V20", "padding": "V07", "packing": "V07, V20", "permute": "V07", "resume": "V29", "toggle": "V33"}[r.name], Fix: r.fix}
		for _, f := range own[1:] {
			if relationOf[f.ID] == r.name {
				info.Faults = append(info.Faults, f)
			}
		}
		list = append(list, info)
	}
	return list
}

// relationOf is where a bug is described; others may name it, too.
var relationOf = map[string]string{notRepeated: "repeat", dropoutOn: "repeat", paddingSeen: "padding", batchSeen: "partition", packSeen: "packing", oneSided: "partition", rngLost: "resume", dataLost: "resume", weightsLost: "resume", momentsLost: "resume", stateLost: "resume", ignored: "toggle"}

// bound is how much two runs that must agree may differ, in words; see limits.
const bound = "Ids, masks and scores are equal. Log-probs are within 8·√2·σ·(1 − p), σ the rounding of a forward pass in the declared format; what is computed from n of them within 2·n·u of its size and 8 times what its inputs differ by. " +
	"What is not equal bit by bit must have a mean of 0 over the rows."

// Relation is what two runs must keep.
type Relation struct{ Name, Option string }

// ParseRelation reads repeat, partition, padding, packing, permute, resume or toggle=OPTION.
func ParseRelation(s string) (Relation, error) {
	name, option, given := strings.Cut(s, "=")
	var names []string
	for _, r := range relations {
		if names = append(names, r.name); r.name == name && given == (name == "toggle") && (!given || option != "") {
			return Relation{name, option}, nil
		}
	}
	return Relation{}, &UsageError{fmt.Errorf("--relation %.40q: want %s, or toggle=OPTION", s, strings.Join(names[:len(names)-1], ", "))}
}
