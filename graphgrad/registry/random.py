"""Rules of random ops."""
