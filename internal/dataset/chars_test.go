package dataset

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"plumbline/internal/rng"
)

// The values of the source's formula at six shares, computed by hand.
func TestJudgeTarget(t *testing.T) {
	for s, want := range map[float64]float64{0: 0, .1: .1981, .25: .47265625, .5: .8125, .75: .97265625, 1: 1} {
		require.InDelta(t, want, JudgeTarget(s), 1e-15, "share %g", s)
	}
}

func corpusOf(n, characters int) Corpus {
	c := Corpus{Characters: characters}
	for i := range n {
		c.IDs = append(c.IDs, i%characters)
	}
	return c
}

// Masking is 80/10/10 of the chosen share, and the targets are the text's.
func TestMaskShares(t *testing.T) {
	const mask, rows, width, ratio = 65, 500, 64, .3
	c := corpusOf(1000, 65)
	var chosen, masked, changed, kept int
	for i := range rows {
		text := c.Window(rng.New(1, 1), i, width)
		x, y := c.Mask(rng.New(1, 2), i, text, ratio, mask)
		for k := range text {
			switch {
			case y[k] == Ignore:
				require.Equal(t, text[k], x[k])
				continue
			case x[k] == mask:
				masked++
			case x[k] == text[k]:
				kept++
			default:
				changed++
			}
			require.Equal(t, text[k], y[k])
			chosen++
		}
	}
	// Four standard deviations of binomial counts.
	n := float64(rows * width)
	require.InDelta(t, ratio*n, chosen, 4*80)
	require.InDelta(t, .8*float64(chosen), masked, 4*40)
	// A random character is the text's own once in 65 times.
	require.InDelta(t, .1*64/65*float64(chosen), changed, 4*30)
	require.InDelta(t, (.1+.1/65)*float64(chosen), kept, 4*30)
}

func TestCorruptLaws(t *testing.T) {
	c := corpusOf(500, 65)
	shares := map[float64]int{}
	rapid.Check(t, func(t *rapid.T) {
		i := rapid.IntRange(0, 1<<30).Draw(t, "i")
		n := rapid.IntRange(1, 64).Draw(t, "n")
		text := c.Window(rng.New(7, 1), i, n)
		before := slices.Clone(text)
		out, share := c.Corrupt(rng.New(7, 2), i, text)
		again, _ := c.Corrupt(rng.New(7, 2), i, text)
		if !slices.Equal(out, again) || !slices.Equal(text, before) {
			t.Fatal("row i is not a function of i, or the text was changed")
		}
		differ := 0
		for k := range out {
			if out[k] < 0 || out[k] >= c.Characters {
				t.Fatalf("id %d", out[k])
			}
			if out[k] != text[k] {
				differ++
			}
		}
		if share < 0 || share > 1 || float64(differ) > share*float64(n)+1e-9 {
			t.Fatalf("%d of %d ids differ for a share of %g", differ, n, share)
		}
		shares[share]++
	})
	// The count is exact: with a character of its own at every synthetic place, as many places differ as the share says.
	all := Corpus{IDs: []int{9, 9, 9, 9, 9, 9, 9, 9}, Characters: 10}
	total := 0
	for i := range 400 {
		out, share := Corpus{IDs: []int{5, 5}, Characters: 1}.Corrupt(rng.New(3, 3), i, all.IDs)
		differ := 0
		for _, id := range out {
			if id != 9 {
				differ++
			}
		}
		require.InDelta(t, share*8, differ, 1e-9)
		total += differ
	}
	require.InDelta(t, 400*4, total, 4*52, "shares are uniform from 0 to 1")
}

func TestSplitAndWindow(t *testing.T) {
	c := corpusOf(100, 100)
	train, held := c.Split()
	require.Equal(t, c.IDs, append(slices.Clone(train.IDs), held.IDs...))
	require.Len(t, held.IDs, 10)
	require.NoError(t, held.Check(10))
	require.Error(t, held.Check(11))
	seen := map[int]bool{}
	for i := range 200 {
		w := held.Window(rng.New(1, 1), i, 8)
		require.Len(t, w, 8)
		require.Equal(t, w[0]+7, w[7])
		seen[w[0]] = true
	}
	require.Len(t, seen, 3, "windows begin everywhere, the last place included")
}

func TestReadText(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.txt")
	require.NoError(t, os.WriteFile(path, []byte("Shall I\n"), 0o644))
	text, err := ReadText(path)
	require.NoError(t, err)
	require.Equal(t, "Shall I\n", text)
	_, err = ReadText(path + "x")
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = ReadText(t.TempDir())
	require.Error(t, err)
}
