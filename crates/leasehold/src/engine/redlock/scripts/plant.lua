-- Before a renewal: gives the claim its vote by the rules of a grant, if this server has forgotten it or never had it.
-- ARGV: as in a renewal; before the mark the mode, the token and the meta.
local planted = tonumber(ARGV[6])
if planted > last_number() then
  local mode, modes = tonumber(ARGV[5]), holders()
  if not holder_of(CLAIM, redis.call('GET', LOCK)) and fits(mode, modes) then
    remove_waiter(CLAIM)
    hold(CLAIM, mode, tonumber(ARGV[2]), set_number(planted), tonumber(ARGV[4]), ARGV[7])
  end
end
