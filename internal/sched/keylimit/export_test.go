package keylimit

// WholeShare is wholeShare.
var WholeShare = wholeShare
