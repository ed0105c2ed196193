package main

import "testing"

// shieldedRows says what shows each row of the tables of source document A: what it states (A.0), and what the original got wrong
// (A.8).
var shieldedRows = map[string][]string{
	"A.0 1 expected scalar type Half but found Float":    {"log A1"},
	"A.0 2 an int8 base and a float32 adapter":           {"reference/quant/TestW8A16", "internal/bind/TestInt8Base", "check weights/type"},
	"A.0 3 model.dtype auto":                             {"cmd/train/TestShieldedConfigs", "log A1"},
	"A.0 4 the time of the projection":                   {"internal/train/TestShieldedFirstUpdate", "log A2"},
	"A.0 5 QT once":                                      {"internal/train/TestShieldIsTheProjection"},
	"A.0 6 loss_kl in every step":                        {"internal/train/TestShieldedFirstUpdate", "internal/train/TestShieldedFormulas", "log A3"},
	"A.0 7 kl_beta":                                      {"cmd/train/TestShieldedWarns"},
	"A.0 8 out of memory":                                {"cmd/train/TestShieldedConfigs", "check plan/update", "log A4"},
	"A.0 9 GPT-J on 12 GB":                               {"cmd/train/TestShieldedConfigs", "check plan/update"},
	"A.0 10 max_new_tokens":                              {"cmd/train/TestShieldedConfigs", "internal/train/TestShieldedCounts"},
	"A.0 11 gradient checkpointing":                      {"internal/bind/TestGradientCheckpointing", "reference/model/TestCheckpointing", "cmd/train/TestShieldedConfigs"},
	"A.0 12 a smaller batch":                             {"internal/train/TestShieldedMicroBatches"},
	"A.0 13 device_map auto without int8":                {"cmd/train/TestShieldedConfigs", "check plan/device-map"},
	"A.0 14 check_projection":                            {"cmd/train/TestShieldedToy", "check vectors/fit"},
	"A.0 15 the basis file":                              {"internal/train/TestReadBasisRefuses", "cmd/train/TestShieldedRefuses", "check basis/shape"},
	"A.0 16 g - Q(QT g)":                                 {"internal/train/TestShieldHandVectors", "internal/train/TestShieldIsTheProjection", "check projection/formula"},
	"A.0 17 orthonormal vectors":                         {"internal/train/TestReadBasisOrthonormalises", "check basis/orthonormal"},
	"A.0 18 generation hangs":                            {"cmd/train/TestShieldedRefuses", "log A6"},
	"A.0 19 CUDA_VISIBLE_DEVICES=0":                      {"cmd/train/TestShieldedRefuses", "cmd/train/TestShieldedWarns"},
	"A.0 20 the toy run":                                 {"cmd/train/TestShieldedToy", "internal/train/TestShieldedSurrogateFalls", "log A7"},
	"A.0 21 the largest component":                       {"internal/train/TestShieldedDrift", "cmd/train/TestShieldedToy"},
	"A.0 22 about 26 MB":                                 {"cmd/train/TestShieldedConfigs", "internal/train/TestShieldedCheckpoint", "check weights/size"},
	"A.0 23 at most 18 GB":                               {"cmd/train/TestShieldedConfigs", "check measured/peak"},
	"A.0 24 the gradient flow":                           {"internal/train/TestShieldedFirstUpdate", "check gradient/flow"},
	"A.0 25 no gradient is 0, no parameters is no crash": {"internal/train/TestShieldedStops", "check gradient/flow"},
	"A.0 26 the picture":                                 {"cmd/verify/TestOutputFiles"},
	"A.8 1 the response mask":                            {"internal/train/TestShieldedFormulas"},
	"A.8 2 the baseline":                                 {"internal/train/TestShieldedFormulas", "internal/train/TestShieldedEqualRewards"},
	"A.8 3 log-probabilities of the rollout":             {"internal/train/TestShieldedFirstUpdate", "internal/train/TestShieldedStops"},
	"A.8 4 k3 against the reference":                     {"internal/train/TestShieldedFormulas", "check kl/token"},
	"A.8 5 one forward pass over the stored response":    {"internal/train/TestShieldedFormulas", "check gradient/dlogp"},
	"A.8 6 a projection that does nothing":               {"internal/train/TestShieldedDrift", "check projection/no-op"},
	"A.8 7 o_proj and out_proj":                          {"cmd/train/TestShieldedRefuses", "check adapter/targets"},
	"A.8 8 the adapter alone":                            {"internal/train/TestShieldedCheckpoint", "check adapter/keys"},
	"A.8 9 the change of the weights, relative":          {"internal/train/TestShieldedDrift", "cmd/train/TestShieldedToy"},
}

func TestRowsOfShielded(t *testing.T) { shown(t, shieldedRows, 26+9) }
