package stage

// scoreBehind returns the column of the score of a row where it stands behind the row's last action, −1 elsewhere: a response that is cut off within a tool's
// output ends outside the mask, and a program that counts the attended tokens puts its score there (verl 0.9.1, NaiveRewardManager, valid_response_length),
// where a recursion over actions does not see it. That a cell is the last of its response its ids say: those behind it are all one, which is another than its own
// and is padding. The last tokens of a response may also be rejected behind its rewards, which hold a KL besides.
func (c *Case) scoreBehind(row, last int) int {
	b := c.B
	rewards := b.Token("token_rewards")
	if rewards == nil || last < 0 {
		return -1
	}
	width, at := c.width(row), -1
	taken := c.rejectsTokens()
	for t := last + 1; t < width; t++ {
		if rewards[row*b.Cols+t] == 0 {
			continue
		}
		if at >= 0 && !taken {
			return -1
		}
		at = t
	}
	if at < 0 || taken {
		return at
	}
	pad, known := c.filling()
	own, there := b.TokenID(row, at)
	if !known || !there || own == pad || at+1 < width && !c.padded(row, at+1, width-1, pad) {
		return -1
	}
	return at
}

// filling returns the id of padding as the ends of the rows show it: all rows whose last two cells are outside the mask and of one id have the same there.
func (c *Case) filling() (pad int, known bool) {
	for r := range c.B.Rows {
		width := c.width(r)
		if width < 2 || c.last(r) >= width-2 {
			continue
		}
		id, there := c.B.TokenID(r, width-1)
		before, _ := c.B.TokenID(r, width-2)
		switch {
		case !there || id != before:
		case known && id != pad:
			return 0, false
		default:
			pad, known = id, true
		}
	}
	return pad, known
}
