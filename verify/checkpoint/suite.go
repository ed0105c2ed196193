package checkpoint

import "plumbline/verify/check"

// Suite is the checks of verify checkpoint, in the order of the report: what explains others comes first.
var Suite = check.Suite[*Input]{
	Files, Pickles, Contents, Leftovers, Manifests,
	AdapterKeys, AdapterConfig, Rank, Targets, BaseFit,
	Shards, Names, Tied, StoredTypes, Scales,
	WeightSize, Finite, Zero, Start, Trained, Values,
	ValueHead, TokenizerFiles, SpecialTokens, OptimizerState, TrainerState, Moments, RunLayout,
	Codes, Dense, Merged, Delta, MergedFolder, Moved, Layout,
}
