package symptom_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/bug"
	"plumbline/verify/symptom"
)

// Every id that a rule names is in the registry, and every symptom of the registry is named by a rule.
func TestEveryRuleHasASymptom(t *testing.T) {
	named := map[string]bool{}
	entries, err := os.ReadDir(".")
	require.NoError(t, err)
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), e.Name(), nil, 0)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
				if text, err := strconv.Unquote(l.Value); err == nil && bug.FindSymptom(text) != nil {
					named[text] = true
				}
			}
			if call, ok := n.(*ast.CallExpr); ok {
				if f, ok := call.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "say" {
					if l, ok := call.Args[0].(*ast.BasicLit); ok {
						text, err := strconv.Unquote(l.Value)
						require.NoError(t, err)
						require.NotNil(t, bug.FindSymptom(text), text)
					}
				}
			}
			return true
		})
	}
	for _, s := range bug.Symptoms() {
		require.True(t, named[s.ID], "no rule names %s", s.ID)
	}
}

func TestDictionary(t *testing.T) {
	require.NotEmpty(t, symptom.Meanings("kl"))
	require.NotEmpty(t, symptom.Meanings("rewards/accuracy/mean"))
	require.Empty(t, symptom.Meanings("no_such_metric"))
	for _, m := range symptom.Meanings("approx_kl") {
		require.NotEmpty(t, m.Trap)
	}
	require.True(t, symptom.Known("train/loss"))
	require.True(t, symptom.Known("timing_s/gen"))
	require.False(t, symptom.Known("pid"))
	q := symptom.Find("kl_k3")
	require.Zero(t, q.Low)
	require.Equal(t, "KL-NEGATIVE", q.Range)
}

// A trainer hears of a symptom once, in the step of it, and of nothing else.
func TestLive(t *testing.T) {
	l := symptom.NewLive(map[string]string{"kl_beta": "0.05"})
	var said []string
	for i := range 40 {
		kl := .001 * float64(i)
		if i >= 20 {
			kl = 3
		}
		for _, f := range l.Add(i+1, []symptom.Value{{Name: "loss", Value: kl*.05 - .1}, {Name: "loss_pg", Value: -.1}, {Name: "loss_kl", Value: kl * .05}, {Name: "kl", Value: kl}, {Name: "ratio_mean", Value: 1}, {Name: "time_project_ms", Value: 1}, {Name: "time_step_ms", Value: 100}}) {
			said = append(said, f.ID+" "+strconv.Itoa(int(f.Step)))
			require.NotEmpty(t, f.Fix)
			require.NotEmpty(t, f.Evidence)
		}
	}
	require.Equal(t, []string{"A3 21"}, said)

	l = symptom.NewLive(nil)
	require.Empty(t, l.Add(1, []symptom.Value{{Name: "loss", Value: 1}, {Name: "grad_norm", Value: 1}}))
	found := l.Add(2, []symptom.Value{{Name: "loss", Value: math.NaN()}, {Name: "grad_norm", Value: math.Inf(1)}})
	require.Len(t, found, 1)
	require.Equal(t, "NONFINITE", found[0].ID)
	require.Empty(t, l.Add(3, []symptom.Value{{Name: "loss", Value: math.NaN()}}))
}

// What explains another stands above it, and takes its place in the order.
func TestRank(t *testing.T) {
	f := func(id string, s symptom.Severity, k symptom.Kind) *symptom.Finding {
		return &symptom.Finding{Symptom: bug.MustFindSymptom(id), Severity: s, Kind: k}
	}
	list := symptom.Rank([]*symptom.Finding{f("C13", symptom.Fail, symptom.Threshold), f("C10", symptom.Note, symptom.Trend), f("C15", symptom.Fail, symptom.Threshold), f("C16", symptom.Warn, symptom.Exact), f("C14", symptom.Warn, symptom.Threshold)})
	var ids []string
	for _, x := range list {
		ids = append(ids, x.ID)
	}
	require.Equal(t, []string{"C16", "C15", "C10"}, ids)
	require.Len(t, list[1].Under, 2)
}
