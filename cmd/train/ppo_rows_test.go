package main

import "testing"

// ppoRows says what shows each row of the tables of source document C: what it states (C.0), and what the original got wrong (C.8).
var ppoRows = map[string][]string{
	"C.0 1 config.yaml and config_debug.yaml":         {"cmd/train/TestConfigurations", "internal/config/TestSettings"},
	"C.0 2 CUDA and bitsandbytes":                     {"cmd/train/TestConfigurations", "internal/train/TestWarnings", "reference/optim/TestAdam8bit"},
	"C.0 3 five functions":                            {"reference/rl/TestTutorialFormulas", "cmd/train/TestVerifyWhileTraining", "cmd/train/TestPlantedWhileTraining"},
	"C.0 4 an exercise that is wrong":                 {"cmd/train/TestPlantedWhileTraining", "cmd/train/TestNotFinite", "check gradient/dlogp", "check gae/advantage"},
	"C.0 5 policy and critic together":                {"internal/train/TestAblations"},
	"C.0 6 GAE in detail":                             {"reference/rl/TestTutorialFormulas", "check gae/advantage", "check reward/token"},
	"C.0 7 variance of Monte Carlo":                   {"internal/train/TestVarianceOfLambda"},
	"C.0 8 returns before whitening":                  {"check gae/returns", "cmd/train/TestPlantedWhileTraining"},
	"C.0 9 whitening":                                 {"reference/rl/TestTutorialFormulas", "check advantage/moments"},
	"C.0 10 a value per token":                        {"internal/train/TestValueHead", "check agreement/old"},
	"C.0 11 several epochs":                           {"internal/train/TestWarnings", "internal/train/TestAblations"},
	"C.0 12 ActorModelWithValueHead":                  {"internal/train/TestValueHead", "check value/head"},
	"C.0 13 the value head":                           {"internal/train/TestValueHead"},
	"C.0 14 a shared base":                            {"internal/train/TestValueHead"},
	"C.0 15 label masking":                            {"internal/train/TestMaskedCells", "check masks/position", "cmd/train/TestPlantedWhileTraining"},
	"C.0 16 the slice of logits and values":           {"cmd/train/TestPlantedWhileTraining", "internal/train/TestValueHead", "check first_step/ratio"},
	"C.0 17 batch_size and mini_batch_size":           {"internal/train/TestPartitionInvariance", "internal/train/TestBatchSizeIsWithoutEffect"},
	"C.0 18 kl_coeff":                                 {"internal/train/TestAblations", "check reward/token"},
	"C.0 19 entropy_coeff":                            {"internal/train/TestAblations", "check aggregate/entropy_loss", "cmd/train/TestPlantedWhileTraining"},
	"C.0 20 clip_ratio and clip_range_value":          {"internal/train/TestAblations", "cmd/train/TestPlantedWhileTraining", "check gradient/dlogp", "check gradient/dvalues"},
	"C.0 21 the reward":                               {"internal/dataset/TestReward"},
	"C.0 22 a reward of zero is learned from":         {"internal/train/TestZeroReward"},
	"C.0 23 convergence":                              {"cmd/train/TestPPOLearns", "internal/train/TestCutAndUnfinished"},
	"C.0 24 sampling":                                 {"internal/train/TestWarnings"},
	"C.0 25 the order of remedies":                    {"internal/train/TestWarnings"},
	"C.0 26 outputs":                                  {"cmd/train/TestRunFolder", "cmd/train/TestResume", "check run/layout"},
	"C.8 1 the value head is saved, a run is resumed": {"cmd/train/TestResume", "cmd/train/TestPlantedInCheckpoints", "check value/head"},
	"C.8 2 padding on the left":                       {"internal/train/TestFirstUpdateAndFreshPrompts", "check first_step/ratio"},
	"C.8 3 the mask ends with the first EOS":          {"cmd/train/TestPlantedWhileTraining"},
	"C.8 4 fresh prompts in every step":               {"internal/train/TestFirstUpdateAndFreshPrompts", "cmd/train/TestResume"},
	"C.8 5 micro-batches that are left over":          {"internal/train/TestLeftovers", "cmd/train/TestPlantedWhileTraining"},
	"C.8 6 the parser of numbers":                     {"internal/dataset/TestReward"},
	"C.8 7 masters in float32":                        {"internal/train/TestWarnings", "check weights/type"},
	"C.8 8 log-probabilities of the sampler":          {"cmd/train/TestVerifyWhileTraining", "check agreement/engine"},
	"C.8 9 whitening of TRL":                          {"reference/rl/TestTutorialFormulas", "check advantage/moments"},
}

func TestRowsOfPPO(t *testing.T) { shown(t, ppoRows, 26+9) }
