package checkpoint_test

import (
	"context"
	"fmt"

	"plumbline/internal/arch"
	"plumbline/verify/check"
	"plumbline/verify/checkpoint"
)

// An adapter that PEFT wrote before training: its B is zero.
func Example() {
	in, err := checkpoint.Load(context.Background(), checkpoint.Paths{Dir: "../../golden/checkpoint/peft_gptj_init", Base: "../../golden/checkpoint/hf_gptj"})
	if err != nil {
		panic(err)
	}
	defer in.Close()
	results, err := checkpoint.Suite.Run(in, check.Selection{})
	if err != nil {
		panic(err)
	}
	for _, r := range results {
		if r.Verdict == check.Fail {
			fmt.Println(r.Check, r.Reason)
		}
	}
	// Output: adapter/trained B is zero in all 8 modules
}

// The adapter of about 26 MB for GPT-J-6B.
func ExamplePlan() {
	rows, err := checkpoint.Plan(arch.Find("EleutherAI/gpt-j-6b"), [][]string{{"q_proj", "v_proj", "fc_in", "fc_out"}}, []int{4})
	if err != nil {
		panic(err)
	}
	fmt.Println(rows[0].Params, "numbers,", rows[0].Bytes(4), "bytes in float32")
	// Output: 6422528 numbers, 25690112 bytes in float32
}
