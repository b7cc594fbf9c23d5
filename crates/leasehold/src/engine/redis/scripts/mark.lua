-- All servers of the deployment are blank, and this one has been up for long enough to have forgotten nothing that
-- still counts; unless it has started anew since it was asked. ARGV: '', the mark.
local max_ttl = read_mark(MARK)
if uptime() * 1000 < tonumber(max_ttl) then
  return { 'too young' }
end
local known = known_max_ttl()
if known and known ~= max_ttl then
  return { 'other max_ttl', known }
end
set_mark()
return { 'marked' }
