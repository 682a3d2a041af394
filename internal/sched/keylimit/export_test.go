package keylimit

// WholeShare is wholeShare.
var WholeShare = wholeShare

// ShiftUse changes the time at which keys were used, as a step of the clock does.
func (t *Table) ShiftUse(minutes int64) {
	for _, one := range t.use.known {
		for i := range one.slots {
			one.slots[i].minute += minutes
		}
	}
}
