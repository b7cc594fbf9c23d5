-- Renews claims that hold their locks alone, and were given this TTL before: no more than that can be left of it.
-- KEYS: the locks; the register. ARGV: ttl; where the beginnings end; for each lock the beginning of its value,
-- `claim=attempt:ttl:token:`; the mark, if one is kept. Returns the numbers of those for which there is more to do.
local ttl, last, rest = ARGV[1], ARGV[2], {}
local votes = #ARGV == #KEYS + 1 or redis.call('ZSCORE', KEYS[#KEYS], ARGV[#ARGV])
for nth = 1, #KEYS - 1 do
  if votes and redis.pcall('GETRANGE', KEYS[nth], '0', last) == ARGV[nth + 2] then
    redis.call('PEXPIRE', KEYS[nth], ttl)
  else
    rest[#rest + 1] = nth
  end
end
return rest
