package dump_test

import (
	"context"
	"fmt"
	"testing"

	"plumbline/verify/check"
	"plumbline/verify/dump"
)

// A gate in another repository's tests.
func ExampleRequire() {
	_ = func(t *testing.T) {
		dump.Require(t, dump.Options{Profile: "trl-grpo@1.16"}, "testdata/run")
	}
}

func ExampleCheckFiles() {
	results, err := dump.CheckFiles(context.Background(), dump.Options{Profile: "trl-grpo@1.16", Selection: check.Selection{Select: []string{"advantage/group"}}},
		"../../golden/dumps/trl-grpo/clean/bnpo_batch_std")
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, r := range results {
		fmt.Println(r.Verdict, r.Check)
	}
	// Output: PASS advantage/group
}

// Advantages of two groups of two, divided by the population's standard deviation where TRL takes the sample's.
func ExampleCheck() {
	a := 0.5 / (0.5 + 1e-4)
	step := dump.Step{
		Rows: 4, Cols: 2, Mask: []bool{true, true, true, false, true, true, true, true},
		PerRow: map[string][]float64{"scores": {1, 0, 0, 1}, "group_id": {0, 0, 1, 1}, "advantages": {a, -a, -a, a}},
	}
	results, err := dump.Check(context.Background(), dump.Options{Profile: "trl-grpo@1.16"}, step)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, r := range results {
		if r.Verdict == check.Convention {
			fmt.Println(r.Check, r.Explanations[0].Title)
		}
	}
	// Output: advantage/group adv.ddof 0 where trl-grpo@1.16 says 1
}
